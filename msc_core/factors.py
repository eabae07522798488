"""How the axes of a reshape correspond: runs of equal product, and their common factors. Sizes may be symbolic."""

from __future__ import annotations

from itertools import pairwise

from msc_core import dims
from msc_core.dims import Dim

Shape = tuple[Dim, ...]


def blocks(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes of a reshape that correspond: the smallest runs of equal product; size-1 axes are left out.

    >>> blocks((2, "N", 6), (2, "3*N", 1, 2))
    [([0], [0]), ([1, 2], [1, 3])]
    """
    left = [i for i, d in enumerate(source) if d != 1]
    right = [j for j, d in enumerate(target) if d != 1]
    blocks: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := dims.mul(*(source[i] for i in a))) != (q := dims.mul(*(target[j] for j in b))):
            if left and (not right or _smaller(p, q)):
                a.append(left.pop(0))
            elif right:
                b.append(right.pop(0))
            else:
                break
        blocks.append((a, b))
    return blocks


def _smaller(a: Dim, b: Dim) -> bool:
    """Whether a product is the smaller one, as far as symbols allow to say."""
    return a < b if isinstance(a, int) and isinstance(b, int) else dims.mod(b, a) == 0


def refine(source: Shape, target: Shape) -> Shape | None:
    """The common refinement of two factorizations of one number, slowest first; `None` if there is none.

    >>> refine(("N", 6), ("3*N", 2)), refine((4, 6), (6, 4))
    (('N', 3, 2), None)
    """
    cuts: list[Dim] = [1]
    for sizes in (source, target):
        product: Dim = 1
        for size in reversed(sizes):
            product = dims.mul(product, size)
            if product not in cuts:
                cuts.append(product)
    ordered: list[Dim] = []
    while cuts:  # each divides the next
        least = next((a for a in cuts if all(dims.mod(b, a) == 0 for b in cuts)), None)
        if least is None:
            return None
        ordered.append(least)
        cuts.remove(least)
    return tuple(dims.floordiv(high, low) for low, high in reversed(list(pairwise(ordered))))


def take(factors: Shape, size: Dim) -> Shape:
    """The leading factors whose product is `size`."""
    count = 0
    product: Dim = 1
    while product != size:
        product = dims.mul(product, factors[count])
        count += 1
    return factors[:count]


def positions(size: Dim) -> int:
    """How many positions of an axis can have ids of their own: `"4*N"` repeats its last 4, N times.

    >>> positions(6), positions("4*N"), positions("N + 4")
    (6, 4, 1)
    """
    if isinstance(size, int):
        return size
    factor, star, rest = size.partition("*")
    whole = star and factor.isdigit() and dims.mul(int(factor), rest) == size
    return int(factor) if whole and not set("+-") & set(rest) else 1
