"""Dimensions: ints and, where a size is symbolic, expressions over symbols as canonical text: `"N"`, `"2*N + 1"`.

An expression is a polynomial with integer coefficients over atoms: symbols (Python identifiers), floor divisions,
`max` and `min`. Equal polynomials have equal text, so shapes compare with `==`. Text is parsed, never executed; what
torch's symbolic shapes print (`Mod(a, b)`, `Max(a, b)`, `FloorDiv(a, b)`, small powers) is understood too.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Any

from msc_core.errors import InvalidGraph

Dim = int | str
Monomial = tuple[str, ...]  # sorted atoms, repeated for powers
Polynomial = dict[Monomial, int]

FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "max": max, "min": min,
}  # fmt: skip
_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}
_CALLS = {"max": "max", "min": "min", "Max": "max", "Min": "min", "FloorDiv": "//"}
MAX_LENGTH = 2000


def parse(text: str) -> Dim:
    """The canonical form of an expression. Raises `InvalidGraph` if it is not one.

    >>> parse("N*2 + 1 + N"), parse("(4*N + 6)//2"), parse("N - N + 3"), parse("(N + 1)//2*2")
    ('3*N + 1', '2*N + 3', 3, '2*((N + 1)//2)')
    """
    return _print(interpret(text, _symbol, _POLYNOMIAL, _constant))


def is_symbol(dim: Dim) -> bool:
    """Whether a dimension is one bare symbol."""
    return isinstance(dim, str) and dim.isidentifier()


def symbols(dims: Iterable[Dim]) -> list[str]:
    """The symbols of some dimensions, in order, each once.

    >>> symbols([3, "M", "2*N + M"])
    ['M', 'N']
    """
    found: dict[str, None] = {}
    for dim in dims:
        if isinstance(dim, str):
            interpret(dim, lambda name: found.setdefault(name), dict.fromkeys(FUNCTIONS, lambda a, b: None))
    return list(found)


def substitute(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """The dimension with some symbols replaced.

    >>> substitute("2*N + M", {"N": 3}), substitute("(N + 1)//2", {"N": 4})
    ('M + 6', 2)
    """
    if isinstance(dim, int):
        return dim
    return _print(interpret(dim, lambda name: _polynomial(sizes.get(name, name)), _POLYNOMIAL, _constant))


def add(*dims: Dim) -> Dim:
    """The sum.

    >>> add("N", 2, "N"), add(1, 2)
    ('2*N + 2', 3)
    """
    return _fold("+", 0, dims)


def sub(a: Dim, b: Dim) -> Dim:
    """The difference."""
    return _binary("-", a, b)


def mul(*dims: Dim) -> Dim:
    """The product.

    >>> mul("N", 2, "M"), mul()
    ('2*M*N', 1)
    """
    return _fold("*", 1, dims)


def floordiv(a: Dim, b: Dim) -> Dim:
    """The quotient, rounded down.

    >>> floordiv("6*N", 3), floordiv("2*N*M", "M"), floordiv("N + 4", 2), floordiv(7, 2)
    ('2*N', '2*N', '(N//2) + 2', 3)
    """
    return _binary("//", a, b)


def mod(a: Dim, b: Dim) -> Dim:
    """The remainder of `floordiv`.

    >>> mod("4*N + 1", 2), mod("N", 2)
    (1, '-2*(N//2) + N')
    """
    return sub(a, mul(b, floordiv(a, b)))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """The quotient, rounded up."""
    return floordiv(add(a, b, -1), b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger one, if that is known for all symbols of at least 1.

    >>> maximum("N", 1), maximum("N", "M"), minimum("N//2", "N")
    ('N', 'max(M, N)', '(N//2)')
    """
    return _binary("max", a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller one."""
    return _binary("min", a, b)


def bounds(dim: Dim) -> tuple[float, float]:
    """The least and the greatest value of a dimension, if every symbol is at least 1.

    >>> bounds("2*N - 1"), bounds("(N - 1)//2 + 3")
    ((1, inf), (3, inf))
    """
    if not isinstance(dim, str):
        return dim, dim
    low, high = interpret(dim, lambda _: (1, math.inf), _INTERVALS, lambda value: (value, value))
    return low, high


def interpret(
    text: str,
    symbol: Callable[[str], Any],
    functions: Mapping[str, Callable[[Any, Any], Any]] = FUNCTIONS,
    constant: Callable[[int], Any] = int,
) -> Any:
    """Walk an expression bottom-up with your own symbols, constants and functions (`+ - * // max min`)."""
    try:
        if len(text) > MAX_LENGTH:
            raise SyntaxError(f"longer than {MAX_LENGTH} characters")
        return _walk(_tree(text), symbol, functions, constant)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidGraph(f"{text[:80]!r} is not a dimension: {error}") from None


@lru_cache(maxsize=4096)
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _walk(
    node: ast.expr,
    symbol: Callable[[str], Any],
    functions: Mapping[str, Callable[[Any, Any], Any]],
    constant: Callable[[int], Any],
) -> Any:
    def walk(part: ast.expr) -> Any:
        return _walk(part, symbol, functions, constant)

    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return constant(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return functions["*"](constant(-1), walk(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = walk(node.left), walk(node.right)
        if type(node.op) in _BINARY:
            return functions[_BINARY[type(node.op)]](left, right)
        if isinstance(node.op, ast.Mod):
            return _remainder(left, right, functions)
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant) and node.right.value in range(1, 9):
            return reduce(functions["*"], [left] * int(str(node.right.value)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 2:
        if node.func.id in _CALLS:
            return reduce(functions[_CALLS[node.func.id]], map(walk, node.args))
        if node.func.id in ("Mod", "PythonMod"):
            return _remainder(walk(node.args[0]), walk(node.args[1]), functions)
    raise ValueError(f"found {ast.unparse(node)!r}")


def _remainder(a: Any, b: Any, functions: Mapping[str, Callable[[Any, Any], Any]]) -> Any:
    return functions["-"](a, functions["*"](b, functions["//"](a, b)))


# Polynomials


def _symbol(name: str) -> Polynomial:
    return {(name,): 1}


def _constant(value: int) -> Polynomial:
    return {(): value} if value else {}


def _polynomial(dim: Dim) -> Polynomial:
    return _constant(dim) if isinstance(dim, int) else interpret(dim, _symbol, _POLYNOMIAL, _constant)


def _fold(function: str, start: Dim, dims: Iterable[Dim]) -> Dim:
    for dim in dims:
        start = _binary(function, start, dim)
    return start


@lru_cache(maxsize=65536)
def _binary(function: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        if function == "//" and b == 0:
            raise InvalidGraph(f"{a} // 0 in a dimension")
        return int(FUNCTIONS[function](a, b))
    return _print(_POLYNOMIAL[function](_polynomial(a), _polynomial(b)))


def _add(a: Polynomial, b: Polynomial) -> Polynomial:
    total = dict(a)
    for monomial, factor in b.items():
        total[monomial] = total.get(monomial, 0) + factor
    return {m: f for m, f in total.items() if f}


def _mul(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for m, f in a.items():
        for n, g in b.items():
            total = _add(total, {tuple(sorted((*m, *n))): f * g})
    return total


def _floordiv(a: Polynomial, b: Polynomial) -> Polynomial:
    """Terms that `b`, one monomial, divides are taken out; what remains is an atom."""
    if not b:
        raise InvalidGraph(f"division of {_print(a)} by zero in a dimension")
    if len(b) > 1:
        (m, f), *_ = b.items()
        factor = a.get(m, 0) // f
        if factor and a == _mul(b, _constant(factor)):
            return _constant(factor)
        return _atom("//", a, b)
    ((divisor, factor),) = b.items()
    whole: Polynomial = {}
    rest: Polynomial = {}
    for m, f in a.items():
        quotient = _without(m, divisor)
        if quotient is not None and f % factor == 0:
            whole = _add(whole, {quotient: f // factor})
        else:
            rest = _add(rest, {m: f})
    if rest.keys() <= {()} and not divisor:
        return _add(whole, _constant(rest.get((), 0) // factor))
    return _add(whole, _atom("//", rest, b)) if rest else whole


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _extreme(function: str) -> Callable[[Polynomial, Polynomial], Polynomial]:
    def apply(a: Polynomial, b: Polynomial) -> Polynomial:
        difference = _add(a, _mul(b, _constant(-1)))
        if difference.keys() <= {()}:
            return a if FUNCTIONS[function](difference.get((), 0), 0) else b if difference else a
        if _never_negative(difference):
            return a if function == "max" else b
        if _never_negative(_mul(difference, _constant(-1))):
            return b if function == "max" else a
        return _atom(function, a, b)

    return apply


def _never_negative(p: Polynomial) -> bool:
    """Whether `p` is known to be at least 0: quotients by a number are rounded down by less than 1."""
    if bounds(_print(p))[0] >= 0:
        return True
    for monomial, factor in p.items():
        tree = _tree(monomial[0]) if len(monomial) == 1 else None
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.FloorDiv) and isinstance(tree.right, ast.Constant):
            divisor = int(str(tree.right.value))
            whole = _polynomial(ast.unparse(tree.left))
            low = _add(whole, _constant(1 - divisor)) if factor > 0 else whole
            rest = _mul({m: f for m, f in p.items() if m != monomial}, _constant(divisor))
            return _never_negative(_add(rest, _mul(low, _constant(factor))))
    return False


def _atom(function: str, a: Polynomial, b: Polynomial) -> Polynomial:
    left, right = _print(a), _print(b)
    if function == "//":
        parts = [p if isinstance(p, int) or is_symbol(p) else f"({p})" for p in (left, right)]
        return {(f"({parts[0]}//{parts[1]})",): 1}
    first, second = sorted((str(left), str(right)))
    return {(f"{function}({first}, {second})",): 1}


_POLYNOMIAL: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": _add,
    "-": lambda a, b: _add(a, _mul(b, _constant(-1))),
    "*": _mul,
    "//": _floordiv,
    "max": _extreme("max"),
    "min": _extreme("min"),
}


def _products(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    found = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(found), max(found)


def _quotient(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    if b[0] <= 0:
        return -math.inf, math.inf
    found = [
        0 if y == math.inf and x >= 0 else -1 if y == math.inf else x if math.isinf(x) else x // y for x in a for y in b
    ]
    return min(found), max(found)


_INTERVALS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "*": _products,
    "//": _quotient,
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}


def _print(p: Polynomial) -> Dim:
    if p.keys() <= {()}:
        return p.get((), 0)
    text = ""
    for monomial, factor in sorted(p.items(), key=lambda item: (-len(item[0]), item[0])):
        sign = (" - " if text else "-") if factor < 0 else (" + " if text else "")
        numbers = [str(abs(factor))] if abs(factor) != 1 or not monomial else []
        text += sign + "*".join([*numbers, *monomial])
    return text
