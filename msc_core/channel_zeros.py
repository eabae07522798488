"""Where masked channels are zero: which axes of a tensor hold zeros in the positions whose channels have no weights.

A sum over channels may lose some only where the masked ones add nothing to it. Layers make zeros of zero weights, and
so do norms with parameters; a sigmoid does not keep them. An operator that is not in `RULES` is taken not to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msc_core.ops import Bound

Flags = Sequence[Mapping[str, bool]]  # for each operand, its letters and whether their dropped positions are zero
Rule = Callable[[Bound, Flags, str], bool]


def every(b: Bound, flags: Flags, letter: str) -> bool:
    """Zero where all operands are."""
    return all(f.get(letter, False) for f, x in zip(flags, b.x, strict=True) if x is not None)


def some(b: Bound, flags: Flags, letter: str) -> bool:
    """Zero where one factor is."""
    return any(f.get(letter, False) for f in flags)


def operand(index: int) -> Rule:
    """Zero where that operand is."""
    return lambda b, flags, letter: flags[index].get(letter, False)


def either(b: Bound, flags: Flags, letter: str) -> bool:
    """`where`: zero where both choices are."""
    return all(f.get(letter, False) for f in flags[1:])


def layer(b: Bound, flags: Flags, letter: str) -> bool:
    """A product of the first two operands, and a bias."""
    return some(b, flags[:2], letter) and all(
        f.get(letter, False) for f, x in zip(flags[2:], b.x[2:], strict=True) if x
    )


def parameters(b: Bound, flags: Flags, letter: str) -> bool:
    """A norm: zero where weight and bias are; other axes, where the input is and no bias is added."""
    given = [f for f, x in zip(flags[1:3], b.x[1:3], strict=False) if x is not None]
    if all(letter in f for f in given):
        return all(f[letter] for f in given) if given else True
    return flags[0].get(letter, False) and (len(b.x) < 3 or b.x[2] is None)


def hidden(b: Bound, flags: Flags, letter: str) -> bool:
    """A recurrent layer: all gates and states of a unit."""
    return all(f[letter] for f in flags if letter in f)


def clipped(b: Bound, flags: Flags, letter: str) -> bool:
    """Zero must be between the limits."""
    low, high = b["min"], b["max"]
    return flags[0].get(letter, False) and (low is None or low <= 0) and (high is None or high >= 0)


def padded(b: Bound, flags: Flags, letter: str) -> bool:
    """Zeros must be padded with zeros."""
    return flags[0].get(letter, False) and (b["mode"] != "constant" or b["value"] == 0)


KEEPING = (
    "relu", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "softsign", "relu6",
    "dropout", "cast", "identity", "abs", "negative", "sign", "ceil", "floor", "round", "trunc", "expm1", "log1p",
    "sqrt", "square", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "erf", "erfinv", "tanh", "glu",
    "divide", "trunc_divide", "floor_divide", "max", "min", "sum", "mean", "prod", "variance", "std", "norm",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "resize", "grid_sample", "pixel_shuffle", "pixel_unshuffle", "take", "gather_elements", "gather_nd",
    "permute_dims", "strided_slice", "split", "broadcast_to", "tile", "repeat", "flip", "tril", "triu", "embedding",
)  # fmt: skip
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(KEEPING, operand(0)),
    **dict.fromkeys(("add", "subtract", "maximum", "minimum", "scatter_elements", "concat"), every),
    **dict.fromkeys(("multiply", "matmul", "einsum"), some),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), layer),
    **dict.fromkeys(("conv1d_transpose", "conv2d_transpose", "conv3d_transpose"), layer),
    **dict.fromkeys(("batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm"), parameters),
    **dict.fromkeys(("lstm", "gru", "rnn"), hidden),
    "where": either,
    "attention": operand(2),
    "clip": clipped,
    "pad": padded,
}


def adds_nothing(b: Bound, flags: Flags, letter: str) -> bool:
    """Whether a reduction of the first operand is the same without zeros."""
    summed = b.op.name == "sum" or (b.op.name == "norm" and b["order"] > 0)
    return summed and flags[0].get(letter, False)
