"""Attention, kept whole, and embeddings."""

from __future__ import annotations

import math
from typing import Any

from msc_core import dims
from msc_core.errors import InvalidGraph
from msc_core.ir import Tensor
from msc_core.ops.attention_import import (
    attention_from_aten,
    attention_from_onnx,
    attention_from_relax,
    encoder_layer_from_aten,
    first_of,
    multi_head_from_aten,
)
from msc_core.ops.cumulative import below_diagonal
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import scalar
from msc_core.ops.op import DEVICE, Bound, Call, DType, Op, call, sizes
from msc_core.ops.signature import Sizes
from msc_core.ops.window import product


def attention_axes(b: Bound) -> str:
    """`"b h l d, b h s d, b h z e, mask -> b h l e"`, with `(h g)` for the queries where `g` share a key.

    `s` and `z` are one axis: two letters, so that it stays (what is softmaxed over cannot lose positions). So does `l`
    where the mask is causal. An axis of size 1 broadcasts and has no letter.
    """
    ranks = [len(b.input(i).shape) for i in range(3)]
    causal = b["is_causal"]
    found = {}
    terms = []
    for i, own in enumerate(("l d", "s d", "z e")):
        letters = []
        for axis, size in enumerate(b.input(i).shape[:-2], start=max(ranks) - ranks[i]):
            heads = axis == max(ranks) - 3
            letter = ("(h g)" if i == 0 else "h") if heads and b["groups"] > 1 else f"b{axis}"
            letters.append("." if size == 1 else letter)
            if size != 1 and (i == 0 or axis not in found):
                found[axis] = "(h g)" if letter == "h" else letter
        terms.append(" ".join([*letters, own]))
    batch = [found.get(axis, "1") for axis in range(max(ranks) - 2)]
    mask = b.x[3] if len(b.x) > 3 else None
    shape = () if mask is None else mask.shape
    full = [*batch, "." if causal else "l", "."][len(batch) + 2 - len(shape) :]
    terms.append(" ".join("." if size == 1 else letter for size, letter in zip(shape, full, strict=True)) + "?")
    return f"{', '.join(terms)} -> {' '.join([*batch, 'L' if causal else 'l', 'e'])}"


def attention_sizes(b: Bound, known: Sizes) -> Sizes:
    """Keys and values must be equally many."""
    if known["s"] != known["z"]:
        raise InvalidGraph(f"{b}: {known['s']} keys, {known['z']} values")
    return {"L": known["l"]}


def attention_macs(b: Bound, known: Sizes) -> int:
    """Every query meets every key and every value."""
    batch = product(b.out[0].shape[:-2])
    return batch * product((known["l"], known["s"])) * (product((known["d"],)) + product((known["e"],)))


def attention_to_torch(b: Bound) -> Call:
    """`F.scaled_dot_product_attention`, which takes a mask or a causal one."""
    q, k, v, shown = b.x
    mask: Tensor | Call | None = shown
    causal = b["is_causal"]
    if shown is not None and causal:
        shape = (*b.input(0).shape[-2:-1], *b.input(1).shape[-2:-1])
        below = call("torch.tril", call("torch.ones", sizes(shape), dtype=DType("bool"), device=DEVICE))
        mask = call("torch.where", below, shown, False if shown.dtype == "bool" else -math.inf)
        causal = False
    more = {"enable_gqa": True} if b["groups"] > 1 else {}
    given = {"attn_mask": mask} if mask is not None else {"is_causal": True} if causal else {}
    return call("F.scaled_dot_product_attention", q, k, v, **given, scale=b["scale"], **more)


def attention_steps(b: Bound) -> Any:
    """Attention in small steps. A query that may see no key gets zeros, as in torch."""
    q, k, v = (b.input(i) for i in range(3))
    length, keys, groups = q.shape[-2], k.shape[-2], b["groups"]
    rank = len(k.shape)
    folded = (*q.shape[:-3], dims.floordiv(q.shape[-3], groups), dims.mul(groups, length)) if groups > 1 else ()
    query = call("reshape", q, shape=(*folded, q.shape[-1])) if groups > 1 else q
    turned = call("permute_dims", k, axes=(*range(rank - 2), rank - 1, rank - 2))
    scores = call("multiply", call("matmul", query, turned), scalar(b["scale"], q.dtype))
    if groups > 1:
        scores = call("reshape", scores, shape=(*q.shape[:-1], keys))
    lowest = scalar(-math.inf, q.dtype)
    mask = b.x[3]
    if mask is not None and mask.dtype == "bool":
        scores = call("where", mask, scores, lowest)
    elif mask is not None:
        scores = call("add", scores, mask)
    if b["is_causal"]:
        scores = call("where", below_diagonal(length, keys), scores, lowest)
    weights = call("softmax", scores, axis=-1)
    if mask is not None:
        blind = call("all", call("equal", scores, lowest), axes=(-1,), keepdims=True)
        weights = call("where", blind, scalar(0, q.dtype), weights)
    if groups == 1:
        return call("matmul", weights, v)
    found = call("matmul", call("reshape", weights, shape=(*folded, keys)), v)
    return call("reshape", found, shape=b.out[0].shape)


def embedding_from_aten(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Call:
    """`embedding`; padding only matters to gradients."""
    return call("embedding", weight, indices)


ATTENTION = [
    Op(
        "attention",
        axes=attention_axes,
        attrs={"scale": 1.0, "is_causal": False, "groups": 1},
        sized={"groups": "g"},
        new=attention_sizes,
        macs=attention_macs,
        aten={
            "scaled_dot_product_attention.default": attention_from_aten,
            "_scaled_dot_product_flash_attention_for_cpu.default": first_of(attention_from_aten, 2),
            "_scaled_dot_product_attention_math.default": first_of(attention_from_aten, 2),
            "_scaled_dot_product_efficient_attention.default": first_of(attention_from_aten, 4),
            "_scaled_dot_product_flash_attention.default": first_of(attention_from_aten, 9),
            "_native_multi_head_attention.default": multi_head_from_aten,
            "_transformer_encoder_layer_fwd.default": encoder_layer_from_aten,
        },
        from_onnx={"Attention": attention_from_onnx},
        from_relax={"nn.attention": attention_from_relax, "nn.attention_bias": attention_from_relax},
        torch=attention_to_torch,
        onnx=derived(attention_steps, "onnx"),
        relax=derived(attention_steps, "relax"),
        msc="msc.attention",
    ),
    Op(
        "embedding",
        axes="v d, ... -> ... d",
        aten={"embedding.default": embedding_from_aten},
        torch=lambda b: call("F.embedding", b.x[1], b.x[0]),
        onnx=lambda b: call("Gather", *b.x, axis=0),
        relax=lambda b: call("take", *b.x, axis=0),
        msc="msc.embedding",
    ),
]
