"""Symbolic dimensions compute what their text says, and equal ones have equal text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msc_core import dims
from msc_core.errors import InvalidGraph

SIZES = {"N": 5, "M": 3, "höhe": 7}
LEAVES = st.one_of(st.integers(-9, 9), st.sampled_from(sorted(SIZES)))
FUNCTIONS = {
    "+": dims.add, "-": dims.sub, "*": dims.mul, "//": dims.floordiv, "%": dims.mod, "max": dims.maximum,
    "min": dims.minimum,
}  # fmt: skip


def value(dim) -> int:
    """An independent evaluation, by Python itself."""
    return dim if isinstance(dim, int) else eval(dim, {"max": max, "min": min}, dict(SIZES))  # noqa: S307


@st.composite
def steps(draw):
    """A list of operations on a stack of dimensions."""
    return draw(st.lists(st.tuples(st.sampled_from(sorted(FUNCTIONS)), LEAVES), min_size=1, max_size=6))


@given(LEAVES, steps())
def test_arithmetic_is_pythons(start, operations):
    result, expected = start, value(start)
    for name, operand in operations:
        other = value(operand)
        if name in ("//", "%") and (other == 0 or operand == 0):
            continue
        result = FUNCTIONS[name](result, operand)
        python = {"max": max, "min": min}.get(name) or (lambda a, b, n=name: eval(f"a {n} b", {"a": a, "b": b}))  # noqa: S307
        expected = python(expected, other)
    assert value(result) == expected
    assert dims.substitute(result, SIZES) == expected
    if isinstance(result, str):
        assert dims.parse(result) == result


@given(st.lists(LEAVES, min_size=2, max_size=5), st.randoms())
def test_order_does_not_matter(terms, random):
    shuffled = random.sample(terms, len(terms))
    assert dims.add(*terms) == dims.add(*shuffled)
    assert dims.mul(*terms) == dims.mul(*shuffled)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2*s0 + 2*s0", "4*s0"), ("Max(1, s0)", "max(1, s0)"), ("s0**2", "s0*s0"), ("Mod(s0, 2)", "s0 - 2*(s0//2)"),
     ("FloorDiv(4*s0, 2)", "2*s0"), ("(s0//2)*2", "2*(s0//2)"), ("-s0 + s0", 0), ("(N*M*6)//(2*M)", "3*N")],
)  # fmt: skip
def test_what_torch_prints_is_understood(text, expected):
    assert dims.parse(text) == dims.parse(str(expected))


@pytest.mark.parametrize(
    "text",
    ["", "N +", "__import__('os').system('x')", "f(N)", "N.real", "[N]", "1.5", "N**N", "'N'", "N/2", "N" * 9999],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidGraph, match="is not a dimension"):
        dims.parse(text)


def test_division_by_zero_is_an_error():
    with pytest.raises(InvalidGraph, match=r"zero|// 0"):
        dims.floordiv("N", 0)
    with pytest.raises(InvalidGraph, match=r"zero|// 0"):
        dims.floordiv(3, 0)


def test_symbols():
    assert dims.symbols([1, "2*N", "M + N", "max(K, 3)"]) == ["N", "M", "K"]
    assert dims.is_symbol("N")
    assert not dims.is_symbol("N + 1")
    assert not dims.is_symbol(3)
