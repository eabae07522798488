"""Axis signatures: `"n (g i) h w, (g o) i . ., (g o)? -> n (g o) H W"` says which axes of an operator are the same.

Equal letters are the same axis. `(a b)` is one axis made of two, `a` the slower. A literal number is a fixed size, `.`
an axis of its own, `...` any number of axes (those of all operands broadcast together, as in NumPy), `?` an operand
that may be absent. A letter of the output that no operand has (`H`) is new: its size comes from the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph

Sizes = dict[str, Dim]
Axis = tuple[str, ...]  # the letters of one axis; ("...",) stands for the ellipsis, () for an axis of its own


@dataclass(frozen=True)
class Operand:
    """The axes of one tensor, and whether the tensor may be absent."""

    axes: tuple[Axis, ...]
    optional: bool = False

    def expand(self, rank: int) -> tuple[Axis, ...]:
        """The axes with `...` replaced by `...0` (the last) to `...k` (the first), for a tensor of that rank."""
        if ("...",) not in self.axes:
            return self.axes
        at, count = self.axes.index(("...",)), rank - len(self.axes) + 1
        return (*self.axes[:at], *((f"...{i}",) for i in reversed(range(count))), *self.axes[at + 1 :])


@dataclass(frozen=True)
class Signature:
    """Operands and outputs of one operator."""

    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Signature:
        """Read the notation above.

        >>> Signature.parse("... i, o i, o? -> ... o").operands[1].axes
        (('o',), ('i',))
        """
        left, right = text.split("->")
        operands = [_operand(part) for part in left.split(",")] if left.strip() else []
        return Signature(tuple(operands), tuple(_operand(part) for part in right.split(",")))

    def bind(self, shapes: list[tuple[Dim, ...] | None], known: Sizes) -> Sizes:
        """The size of each letter, given the operands' shapes; `known` sizes help to split composite axes.

        >>> Signature.parse("n (g i), (g o) i -> n (g o)").bind([(8, 6), (4, 3)], {"g": 2})
        {'g': 2, 'n': 8, 'i': 3, 'o': 2}
        """
        sizes = dict(known)
        if len(shapes) > len(self.operands):
            raise InvalidGraph(f"{len(shapes)} inputs found, at most {len(self.operands)} expected")
        for index, (operand, shape) in enumerate(zip_longest(self.operands, shapes)):
            if shape is None:
                if not operand.optional:
                    raise InvalidGraph(f"input {index} is missing")
                continue
            axes = operand.expand(len(shape))
            if len(axes) != len(shape):
                raise InvalidGraph(f"input {index} has shape {list(shape)}; expected {len(axes)} axes")
            for axis, size in zip(axes, shape, strict=True):
                _bind_axis(axis, size, sizes, index)
        return sizes

    def output_shapes(self, sizes: Sizes) -> list[tuple[Dim, ...]]:
        """The outputs' shapes for given letters."""
        count = sum(1 for letter in sizes if letter.startswith("..."))
        shapes = []
        for output in self.outputs:
            axes = output.expand(len(output.axes) - 1 + count)
            factors = [[int(x) if x.isdigit() else sizes[x] for x in axis] for axis in axes]
            shapes.append(tuple(dims.mul(*parts) for parts in factors))
        return shapes


def _operand(text: str) -> Operand:
    text = text.strip()
    optional, text = text.endswith("?"), text.rstrip("?")
    axes: list[Axis] = []
    composite: list[str] | None = None
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            composite = []
        elif token == ")":
            axes.append(tuple(composite or ()))
            composite = None
        elif composite is not None:
            composite.append(token)
        else:
            axes.append(() if token == "." else (token,))
    return Operand(tuple(axes), optional)


def _bind_axis(axis: Axis, size: Dim, sizes: Sizes, index: int) -> None:
    """Give `size` to the one letter of `axis` that has none yet, or check that the product agrees."""
    if not axis:
        return
    known = [int(x) if x.isdigit() else sizes[x] for x in axis if x.isdigit() or x in sizes]
    unknown = [x for x in axis if not x.isdigit() and x not in sizes]
    product = dims.mul(*known)
    if not unknown:
        if len(axis) == 1 and axis[0].startswith("...") and 1 in (size, product):
            sizes[axis[0]] = size if product == 1 else product
        elif size != product and len(axis) == 1:
            raise InvalidGraph(f"input {index} has {size} where axis {axis[0]!r} is {product}")
        elif size != product:
            raise InvalidGraph(f"input {index} has {size} where axis ({' '.join(axis)}) is {product}")
    elif len(unknown) > 1 or dims.mod(size, product) != 0:
        raise InvalidGraph(f"input {index} has {size} where axis ({' '.join(axis)}) needs a multiple of {product}")
    else:
        sizes[unknown[0]] = dims.floordiv(size, product)
