"""Recurrent layers step by step, in our own vocabulary: single cells, and whole layers over a fixed length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, call

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
STATES = {"lstm": 2, "gru": 1, "rnn": 1}


@dataclass(frozen=True)
class Cell:
    """One direction of a layer: torch's weights and gate order, the biases may be absent.

    `axis` is the last axis of its values, `activation` what an RNN applies, `reset_after` whether a GRU multiplies by
    its reset gate after the matrix product (torch) or before it.
    """

    kind: str
    hidden: int
    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None
    axis: int = 2
    activation: str = "tanh"
    reset_after: bool = True

    def project(self, x: Any) -> Call:
        """The part of all gates that comes from the input, at every step at once."""
        bias = self.b_ih
        if self.kind != "gru" and self.b_hh is not None:
            bias = self.b_hh if bias is None else call("add", bias, self.b_hh)
        return call("linear", x, self.w_ih, bias)

    def recurrence(self) -> Callable[[Any], Any]:
        """The matrix product with the hidden state, whose transposed weight all steps share."""
        weight = call("permute_dims", self.w_hh, axes=(1, 0))
        return lambda h: call("matmul", h, weight)

    def step(self, projected: Any, states: Sequence[Any], recur: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The next states; a state of zeros is `None`."""
        if self.kind == "gru":
            return (self._gru(projected, states[0], recur),)
        gates = _add(projected, None if states[0] is None else recur(states[0]))
        return self._lstm(gates, states[1]) if self.kind == "lstm" else (call(self.activation, gates),)

    def _lstm(self, gates: Any, c: Any) -> tuple[Any, ...]:
        i, f, g, o = self._gates(gates)
        new = call("multiply", call("sigmoid", i), call("tanh", g))
        if c is not None:
            new = call("add", call("multiply", call("sigmoid", f), c), new)
        return call("multiply", call("sigmoid", o), call("tanh", new)), new

    def _gru(self, projected: Any, h: Any, recur: Callable[[Any], Any]) -> Any:
        r, z, n = self._gates(projected)
        bias = self._gates(self.b_hh, 0) if self.b_hh is not None else [None] * 3
        if h is None:
            from_h = bias
        elif self.reset_after:
            from_h = self._gates(_add(recur(h), self.b_hh))
        else:
            from_h = [_add(part, b) for part, b in zip(self._gates(recur(h)), bias, strict=True)]
        r, z = (call("sigmoid", _add(gate, part)) for gate, part in zip((r, z), from_h, strict=False))
        if self.reset_after:
            n = _add(n, None if from_h[2] is None else call("multiply", r, from_h[2]))
        elif h is not None:
            last = call("strided_slice", self.w_hh, axes=(0,), begin=(2 * self.hidden,), end=(3 * self.hidden,))
            reset = call("matmul", call("multiply", r, h), call("permute_dims", last, axes=(1, 0)))
            n = _add(n, _add(reset, bias[2]))
        else:
            n = _add(n, bias[2])
        n = call("tanh", n)
        rest = call("multiply", z, n if h is None else call("subtract", h, n))
        return call("subtract" if h is None else "add", n, rest)

    def _gates(self, x: Any, axis: int | None = None) -> list[Any]:
        return pieces(x, GATES[self.kind], self.hidden, self.axis if axis is None else axis)


def pieces(x: Any, count: int, size: int, axis: int) -> list[Any]:
    """Parts of equal size along an axis."""
    if count == 1:
        return [x]
    whole = call("split", x, sizes=(size,) * count, axis=axis)
    return [call("item", whole, i) for i in range(count)]


def _add(a: Any, b: Any) -> Any:
    return a if b is None else call("add", a, b)


def unrolled(b: Bound) -> tuple[Any, ...]:
    """A layer's outputs, step by step. Raises `UnsupportedOperator` if its length is symbolic."""
    length = b.input(0).shape[0]
    if not isinstance(length, int):
        raise UnsupportedOperator(f"{b}: it is unrolled step by step, so the length {length!r} must be a number")
    states = STATES[b.op.name]
    directions = cells(b)
    results = []
    for index, cell in enumerate(directions):
        initial = [s if s is None or len(directions) == 1 else pieces(s, 2, 1, 0)[index] for s in b.x[1 : 1 + states]]
        backward = index == 1 or b["direction"] == "reverse"
        results.append(_run(cell, b.x[0], initial, length, backward))
    if len(results) == 1:
        return results[0]
    return tuple(call("concat", *parts, axis=2 if i == 0 else 0) for i, parts in enumerate(zip(*results, strict=True)))


def cells(b: Bound) -> list[Cell]:
    """The directions of a layer."""
    start = 1 + STATES[b.op.name]
    attrs: dict[str, Any] = {key: b[key] for key in ("activation", "reset_after") if key in b.op.attrs}
    found = []
    for first in range(start, len(b.x), 4):
        w_ih, w_hh, b_ih, b_hh = b.x[first : first + 4]
        found.append(Cell(b.op.name, hidden_size(b.input(first + 1)), w_ih, w_hh, b_ih, b_hh, **attrs))
    return found


def hidden_size(w_hh: Tensor) -> int:
    """How many hidden units a recurrent weight has. Raises `UnsupportedOperator` if that is symbolic."""
    size = w_hh.shape[1]
    if isinstance(size, str):
        raise UnsupportedOperator(f"a recurrent layer with the symbolic number {size} of hidden units")
    return size


def _run(cell: Cell, x: Any, states: Sequence[Any], length: int, backward: bool) -> tuple[Any, ...]:
    """All hidden states in the order of time, and the last states."""
    parts = pieces(cell.project(x), length, 1, 0)
    recur = cell.recurrence()
    outputs = []
    for part in reversed(parts) if backward else parts:
        states = cell.step(part, states, recur)
        outputs.append(states[0])
    outputs = outputs[::-1] if backward else outputs
    return (call("concat", *outputs, axis=0) if length > 1 else outputs[0], *states)
