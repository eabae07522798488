"""Cases of `msc_core/ops/attention.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import Case, Direct, Fn, rand

QKV = (rand(2, 3, 4, 8), rand(2, 3, 5, 8), rand(2, 3, 5, 6))
SHARED = (rand(2, 6, 4, 8), rand(2, 2, 4, 8), rand(2, 2, 4, 8) + 1)
SEEN = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], dtype=torch.bool)
CAUSAL = torch.ones(4, 5, dtype=torch.bool).tril()
attend = F.scaled_dot_product_attention


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return attend(q, k, v, attn_mask=mask)


def fast_attention(layer: nn.MultiheadAttention, x: torch.Tensor, *mask: torch.Tensor, **how: object) -> object:
    """The fast path of torch's layer, which it takes under `no_grad`."""
    return torch.ops.aten._native_multi_head_attention(
        x,
        x,
        x,
        8,
        2,
        layer.in_proj_weight,
        layer.in_proj_bias,
        layer.out_proj.weight,
        layer.out_proj.bias,
        *mask,
        **how,
    )


def fast_encoder(layer: nn.TransformerEncoderLayer, x: torch.Tensor, *mask: torch.Tensor, **how: object) -> object:
    """The same of a whole layer."""
    return torch.ops.aten._transformer_encoder_layer_fwd(
        x, 8, 2, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias, layer.self_attn.out_proj.weight,
        layer.self_attn.out_proj.bias, layer.norm_first, layer.norm_first, 1e-5, layer.norm1.weight, layer.norm1.bias,
        layer.norm2.weight, layer.norm2.bias, layer.linear1.weight, layer.linear1.bias, layer.linear2.weight,
        layer.linear2.bias, *mask, **how,
    )  # fmt: skip


class Fast(nn.Module):
    """A layer called by one of the functions above."""

    def __init__(self, function: object, layer: nn.Module, **how: object) -> None:
        super().__init__()
        self.function, self.layer, self.how = function, layer, how

    def forward(self, *x: torch.Tensor) -> object:
        return self.function(self.layer, *x, **self.how)


ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
FIRST = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
LAYER = nn.MultiheadAttention(8, 2, batch_first=True)
PADDED = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)

CASES: dict[str, list[Case]] = {
    "attention": [
        (Fn(attend), QKV),
        (Fn(attend, scale=0.3), tuple(t[0] for t in QKV)),
        (Fn(attend, is_causal=True), QKV),
        (Fn(attend, is_causal=True, enable_gqa=True), SHARED),
        (Fn(masked), (*QKV, SEEN)),
        (Fn(masked), (*QKV, rand(2, 1, 4, 5))),
        (Fn(masked), (*QKV, rand(1, 3, 1, 5).masked_fill(rand(1, 3, 1, 5) > 0.5, -torch.inf))),
        (Fn(masked, ), (rand(2, 1, 3, 4, 8), rand(1, 2, 3, 5, 8), rand(1, 2, 3, 5, 6), SEEN)),
        (ENCODER, (rand(2, 5, 8),)),
        (Fast(fast_attention, LAYER, need_weights=True), (rand(2, 5, 8),)),
        (Fast(fast_attention, LAYER, need_weights=False, mask_type=1), (rand(2, 5, 8), PADDED)),
        (Fast(fast_encoder, ENCODER), (rand(2, 5, 8),)),
        (Fast(fast_encoder, FIRST, mask_type=0), (rand(2, 5, 8), ~torch.ones(5, 5, dtype=torch.bool).tril())),
    ],
    "embedding": [
        (nn.Embedding(7, 4), (torch.tensor([[0, 6, 3], [2, 2, 1]]),)),
        (nn.Embedding(7, 4, padding_idx=2), (torch.tensor([0, 2], dtype=torch.int32),)),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "attention": [
        (
            {"q": QKV[0], "k": QKV[1], "v": QKV[2], "mask": SEEN}, {"is_causal": True, "scale": 0.5},
            lambda q, k, v, mask: attend(q, k, v, attn_mask=mask & CAUSAL, scale=0.5),
        ),
        (
            {"q": QKV[0], "k": QKV[1], "v": QKV[2], "mask": rand(4, 5)}, {"is_causal": True},
            lambda q, k, v, mask: attend(q, k, v, attn_mask=mask.masked_fill(~CAUSAL, -torch.inf), scale=1.0),
        ),
    ],
}  # fmt: skip
