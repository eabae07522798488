"""Cases of `msc_core/ops/arithmetic.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import BROADCAST, PAIR, ROWS, Case, Direct, Fn, rand

POSITIVE = (rand(2, 3, 4).abs() + 0.5, rand(3, 1))
INTEGERS = (torch.tensor([7, -7, 7, -7, 6, 0]), torch.tensor([2, 2, -2, -2, 3, 5]))
FLOATS = (torch.tensor([7.5, -7.5, 7.5, -7.5, 1.0, 0.0]), torch.tensor([2.0, 2.0, -2.0, -2.0, 0.1, 5.0]))
MIXED = (rand(2, 6), INTEGERS[1])
SHORT = (torch.tensor([100, -100, 7], dtype=torch.int8), torch.tensor([100, -100, 3], dtype=torch.int8))
BOOLS = (torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False]))

CASES: dict[str, list[Case]] = {
    "add": [
        (Fn(torch.add), PAIR), (Fn(torch.add), BROADCAST), (Fn(torch.add, 1.5), ROWS), (Fn(torch.Tensor.add_), PAIR),
        (Fn(torch.add, alpha=-2), PAIR), (Fn(torch.add), MIXED), (Fn(torch.add), SHORT),
        (Fn(torch.add, 0.5), INTEGERS[:1]),
    ],
    "subtract": [
        (Fn(torch.sub), PAIR), (Fn(torch.sub), BROADCAST), (Fn(torch.sub, 1.5), ROWS), (Fn(torch.rsub, 1.5), ROWS),
        (Fn(torch.sub, alpha=3), INTEGERS),
    ],
    "multiply": [
        (Fn(torch.lerp, 0.3), PAIR), (Fn(torch.lerp), (*PAIR, POSITIVE[1])),
        (Fn(torch.addcmul, value=2), (*PAIR, rand(4))),
        (Fn(torch.deg2rad), ROWS), (Fn(torch.rad2deg), INTEGERS[:1]),
        (Fn(torch.mul), PAIR), (Fn(torch.mul), BROADCAST), (Fn(torch.mul, 2), ROWS),
        (Fn(lambda x, m: x * m), (rand(3, 4), BOOLS[0])), (Fn(torch.mul), SHORT),
    ],
    "divide": [
        (Fn(torch.addcdiv, value=0.5), (PAIR[0], PAIR[1], POSITIVE[0])),
        (Fn(torch.div), PAIR), (Fn(torch.div), BROADCAST), (Fn(torch.div, 3), ROWS), (Fn(torch.div), INTEGERS)
    ],
    "trunc_divide": [
        (Fn(torch.div, rounding_mode="trunc"), INTEGERS), (Fn(torch.div, rounding_mode="trunc"), FLOATS),
        (Fn(torch.div, 3, rounding_mode="trunc"), SHORT[:1]),
    ],
    "floor_divide": [
        (Fn(torch.floor_divide), INTEGERS), (Fn(torch.floor_divide), FLOATS), (Fn(torch.floor_divide), MIXED),
        (Fn(torch.floor_divide, 2), FLOATS[:1]), (Fn(torch.div, -3, rounding_mode="floor"), INTEGERS[:1]),
        (Fn(torch.floor_divide), SHORT),
    ],
    "mod": [
        (Fn(torch.remainder), INTEGERS), (Fn(torch.remainder), FLOATS), (Fn(torch.remainder, -3), ROWS),
        (Fn(torch.remainder), SHORT),
    ],
    "fmod": [(Fn(torch.fmod), INTEGERS), (Fn(torch.fmod), FLOATS), (Fn(torch.fmod), SHORT)],
    "power": [
        (Fn(torch.pow), POSITIVE), (Fn(torch.pow, 2), ROWS), (Fn(torch.pow, 0.5), POSITIVE[:1]),
        (Fn(torch.pow, 3), ROWS),
        (Fn(torch.pow, 2), INTEGERS[:1]), (Fn(lambda x: 2**x), ROWS), (Fn(torch.pow, 1.5), (INTEGERS[1].abs(),)),
        (Fn(torch.pow, 3), (SHORT[0] // 20,)),
    ],
    "maximum": [
        (Fn(torch.clamp), (rand(3, 6), rand(6), rand(3, 1) + 1)), (Fn(torch.clamp_min), (rand(3, 6), rand(6))),
        (Fn(torch.maximum), BROADCAST), (Fn(torch.maximum), MIXED), (Fn(torch.max), PAIR), (Fn(torch.maximum), SHORT)
    ],
    "minimum": [(Fn(torch.minimum), BROADCAST), (Fn(torch.minimum), INTEGERS), (Fn(torch.min), PAIR)],
    "atan2": [(Fn(torch.atan2), (torch.tensor([1.0, -1, 1, -1, 2, -2, 0]), torch.tensor([1.0, 1, -2, -1, 0, 0, 1])))],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "trunc_divide": [
        ({"x": torch.tensor([40000, 7], dtype=torch.uint16), "z": torch.tensor([3, 9], dtype=torch.uint16)}, {},
         lambda x, y: (x.int() // y.int()).to(x.dtype)),
    ],
}  # fmt: skip
