"""Cases of `msc_core/ops/quantization.py`."""

from __future__ import annotations

import torch
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, Case, Direct, rand

WIDE = {"x": torch.tensor([[-2.5, -1.5, 0.5, 1.5], [2.5, 3.4, 300.0, -300.0]])}
SCALES, POINTS = torch.tensor([1.0, 0.5, 1.0, 2.0]), torch.tensor([0, 1, 2, 3], dtype=torch.int8)
BYTES = {"x": torch.tensor([[1, 2, 100, 0], [4, 5, -6, 127]], dtype=torch.int8)}


class Decomposed(nn.Module):
    """What PyTorch's exported quantization writes around a layer."""

    def __init__(self, low: int, high: int, dtype: torch.dtype, channels: bool = False) -> None:
        super().__init__()
        import torch.ao.quantization.fx._decomposed  # noqa: F401 (registers the operators)

        self.limits, self.channels = (low, high, dtype), channels
        self.register_buffer("scales", SCALES / 8)
        self.register_buffer("points", POINTS.long())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = "channel" if self.channels else "tensor"
        how = (self.scales, self.points, 1) if self.channels else (0.125, 3)
        ops = torch.ops.quantized_decomposed
        stored = getattr(ops, f"quantize_per_{kind}")(x, *how, *self.limits)
        return getattr(ops, f"dequantize_per_{kind}")(stored, *how, *self.limits)


def quantized(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    return ((x / scale).round() + zero).clamp(limits.min, limits.max).to(dtype)


def dequantized(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return (x.int() - zero.int()) * scale


CASES: dict[str, list[Case]] = {
    "quantize": [(Decomposed(-128, 127, torch.int8), IMAGE), (Decomposed(0, 15, torch.uint8), ROWS)],
    "dequantize": [(Decomposed(-127, 127, torch.int8, channels=True), IMAGE), (Decomposed(-7, 7, torch.int16), ROWS)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "quantize": [
        (WIDE | {"s": torch.tensor(0.5), "z": torch.tensor(-3, dtype=torch.int8)}, {},
         lambda x, s, z: quantized(x, s, z, torch.int8)),
        (WIDE | {"s": torch.tensor([1.0])}, {"dtype": "uint8"},
         lambda x, s: quantized(x, s, torch.tensor(0), torch.uint8)),
        (WIDE | {"s": SCALES, "z": POINTS}, {"axis": -1}, lambda x, s, z: quantized(x, s, z, torch.int8)),
        (WIDE | {"s": torch.tensor(0.01)}, {"dtype": "int16"},
         lambda x, s: quantized(x, s, torch.tensor(0), torch.int16)),
        ({"x": rand(2, 4, 3, 3), "s": SCALES / 9}, {"dtype": "uint8"},
         lambda x, s: quantized(x, s.reshape(4, 1, 1), torch.tensor(0), torch.uint8)),
    ],
    "dequantize": [
        (BYTES | {"s": torch.tensor(0.5), "z": torch.tensor(3, dtype=torch.int8)}, {}, dequantized),
        (BYTES | {"s": SCALES, "z": POINTS}, {}, dequantized),
        ({"x": torch.tensor([[1000, -7], [3, 5]], dtype=torch.int32), "s": torch.tensor([0.1, 2.0])}, {"axis": 0},
         lambda x, s: x * s.reshape(2, 1)),
        ({"x": torch.tensor([40000, 1], dtype=torch.int32), "s": torch.tensor(0.5),
          "z": torch.tensor(7, dtype=torch.int32)}, {}, dequantized),
    ],
}  # fmt: skip
