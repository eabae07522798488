"""Attention of torch, ONNX and Relax in the form of our row: heads first, the scale written out."""

from __future__ import annotations

import math
from typing import Any

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.dtypes import cast, scalar
from msc_core.ops.op import Call, Importer, Source, call

ONNX_ATTRS = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap"}


def root(width: Dim, where: str) -> float:
    """The usual scale, for a head of some width."""
    if isinstance(width, str):
        raise UnsupportedOperator(f"{where} with heads of the symbolic width {width} and no scale")
    return 1 / math.sqrt(width)


def shared_heads(q: Dim, k: Dim, where: str) -> int:
    """How many heads of the queries share one of the keys."""
    if not (isinstance(q, int) and isinstance(k, int)) or k == 0 or q % k:
        raise UnsupportedOperator(f"{where} with {q} heads of queries for {k} of keys")
    return q // k


def attention_from_aten(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_bias: Tensor | None = None,
    **ignored: Any,
) -> Call:
    """`scaled_dot_product_attention` and the kernels that it may become."""
    where = "scaled_dot_product_attention"
    if dropout_p:
        raise UnsupportedOperator(f"{where} with dropout_p={dropout_p}: it drops out in evaluation mode too")
    mask = attn_bias if attn_mask is None else attn_mask
    mask = mask if mask is None or mask.dtype == "bool" else cast(mask, query.dtype)
    factor = root(query.shape[-1], where) if scale is None else float(scale)
    groups = shared_heads(query.shape[-3], key.shape[-3], where) if enable_gqa else 1
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        raise UnsupportedOperator(f"{where} with {key.shape[-3]} heads of keys for {value.shape[-3]} of values")
    return call("attention", query, key, value, mask, scale=factor, is_causal=is_causal, groups=groups)


def first_of(importer: Importer, count: int) -> Importer:
    """An operator of several outputs, of which all but the first are for the backward pass."""
    return lambda **arguments: (importer(**arguments), *[None] * (count - 1))


def split_heads(x: Any, shape: tuple[Dim, ...], heads: int) -> Call:
    """`(batch, length, heads * width)` as `(batch, heads, length, width)`."""
    parts = call("reshape", x, shape=(*shape[:2], heads, dims.floordiv(shape[2], heads)))
    return call("permute_dims", parts, axes=(0, 2, 1, 3))


def join_heads(x: Any, batch: Dim, length: Dim, width: Dim) -> Call:
    """The way back."""
    return call("reshape", call("permute_dims", x, axes=(0, 2, 1, 3)), shape=(batch, length, width))


# torch's fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer


def multi_head(
    x: tuple[Any, Any, Any],
    shapes: tuple[tuple[Dim, ...], ...],
    dtype: str,
    heads: int,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    mask: Tensor | None,
    mask_type: int | None,
) -> tuple[Call, tuple[Any, ...]]:
    """Self- or cross-attention with its projections; its queries, keys and mask too, from which weights follow."""
    w, b, w_out, b_out = weights
    width = w.shape[1]
    bounds = [(dims.mul(i, width), dims.mul(i + 1, width)) for i in range(3)]
    projected = []
    for part, shape, (start, stop) in zip(x, shapes, bounds, strict=True):
        rows = [call("strided_slice", p, axes=(0,), begin=(start,), end=(stop,)) for p in (w, b)]
        projected.append(split_heads(call("linear", part, *rows), (*shape[:2], width), heads))
    q, k, v = projected
    shown: Any = None
    if mask is not None:  # here true means hidden
        hidden = mask if mask.dtype == "bool" else call("not_equal", mask, scalar(0, mask.dtype))
        shown = call("logical_not", hidden)
        if mask_type == 1:
            shown = call("reshape", shown, shape=(mask.shape[0], 1, 1, mask.shape[1]))
    scale = root(dims.floordiv(width, heads), "multi-head attention")
    found = join_heads(call("attention", q, k, v, shown, scale=scale), shapes[0][0], shapes[0][1], width)
    return call("linear", found, w_out, b_out), (q, k, shown, scale, dtype)


def multi_head_from_aten(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """`_native_multi_head_attention`, and the attention weights if they are wanted."""
    x, parameters = (query, key, value), (qkv_weight, qkv_bias, proj_weight, proj_bias)
    shapes = (query.shape, key.shape, value.shape)
    out, (q, k, shown, scale, dtype) = multi_head(x, shapes, query.dtype, num_head, parameters, mask, mask_type)
    if not need_weights:
        return out, None
    scores = call("matmul", q, call("permute_dims", k, axes=(0, 1, 3, 2)))
    scores = call("multiply", scores, scalar(scale, dtype))
    if shown is not None:
        scores = call("where", shown, scores, scalar(-math.inf, dtype))
    weights = call("softmax", scores, axis=-1)
    return out, call("mean", weights, axes=(1,)) if average_attn_weights else weights


def encoder_layer_from_aten(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """`_transformer_encoder_layer_fwd`: attention and two linear layers, each with a residual and a norm."""
    parameters = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    norms = ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))

    def attend(x: Any) -> Call:
        return multi_head((x, x, x), (src.shape,) * 3, src.dtype, num_heads, parameters, mask, mask_type)[0]

    def feed_forward(x: Any) -> Call:
        wide = call("linear", x, ffn_weight_1, ffn_bias_1)
        return call("linear", call("gelu" if use_gelu else "relu", wide), ffn_weight_2, ffn_bias_2)

    x: Any = src
    for layer, norm in zip((attend, feed_forward), norms, strict=True):
        inner = layer(call("layer_norm", x, *norm, eps=eps) if norm_first else x)
        x = call("add", x, inner)
        x = x if norm_first else call("layer_norm", x, *norm, eps=eps)
    return x


# ONNX and Relax


def attention_from_onnx(n: Source) -> Any:
    """`Attention` where it is no more than ours; other forms follow from ONNX's own definition."""
    extra = [i for i in (4, 5, 6) if n.get(i) is not None]
    if n.outputs > 1 or extra or n.attr("softcap", 0.0) or n.attrs.keys() - ONNX_ATTRS:
        raise UnsupportedOperator("Attention with a cache, a cap on its scores, a window or outputs besides the first")
    q, k, v, mask = n.tensor(0), n.tensor(1), n.tensor(2), n.get(3)
    flat = len(q.shape) == 3
    heads = (n.attr("q_num_heads"), n.attr("kv_num_heads")) if flat else (q.shape[1], k.shape[1])
    width = dims.floordiv(q.shape[2], heads[0]) if flat else q.shape[3]
    if mask is not None and mask.shape[-1] not in (1, k.shape[-2]):
        raise UnsupportedOperator(f"Attention with a mask of {mask.shape[-1]} keys for {k.shape[-2]}")
    scale = n.attr("scale")
    parts = [
        split_heads(x, x.shape, count) if flat else x for x, count in zip((q, k, v), (*heads, heads[1]), strict=True)
    ]
    found = call(
        "attention", *parts, mask if mask is None or mask.dtype == "bool" else cast(mask, q.dtype),
        scale=root(width, n.op) if scale is None else float(scale), is_causal=bool(n.attr("is_causal", 0)),
        groups=shared_heads(heads[0], heads[1], n.op),
    )  # fmt: skip
    if not flat:
        return found
    return join_heads(found, q.shape[0], q.shape[1], dims.mul(heads[0], dims.floordiv(v.shape[2], heads[1])))


def attention_from_relax(n: Source) -> Call:
    """`nn.attention`, whose heads come after the length."""
    q, k, v = (n.tensor(i) for i in range(3))
    causal, window = str(n.attr("causal_mask", "")), n.attr("window_size")
    if window is not None or (causal == "BottomRight" and q.shape[1] != k.shape[1]):
        raise UnsupportedOperator(f"{n.op} with causal_mask={causal!r} and window_size={window}")
    scale = n.attr("scale")
    turned = [call("permute_dims", x, axes=(0, 2, 1, 3)) for x in (q, k, v)]
    found = call(
        "attention", *turned, n.get(3), is_causal=causal in ("TopLeft", "BottomRight"),
        scale=root(q.shape[3], n.op) if scale is None else float(scale),
    )  # fmt: skip
    return call("permute_dims", found, axes=(0, 2, 1, 3))
