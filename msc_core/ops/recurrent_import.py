"""Recurrent layers of torch and ONNX in the form of our rows: one node for each layer, time first, torch's gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array, Tensor
from msc_core.ops.op import Call, Importer, Source, call
from msc_core.ops.recurrent_steps import GATES, STATES, Cell, hidden_size

ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}  # ONNX's gates in terms of torch's
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
FUNCTIONS = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"], "rnn": ["tanh"]}


def swap(x: Any, wanted: bool = True) -> Any:
    """`x` with its first two axes exchanged: batch and time."""
    return call("permute_dims", x, axes=(1, 0, 2)) if wanted else x


def layers_from_aten(kind: str, **attrs: Any) -> Importer:
    """`aten.lstm`, `gru` and the like: a node for each layer, with dropout between them."""

    def importer(
        input: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, ...]:
        directions = 2 if bidirectional else 1
        each, count = (4 if has_biases else 2), num_layers * directions
        if len(params) != count * each:
            raise UnsupportedOperator(f"{kind} with projections (proj_size)")
        weights = [(*params[i : i + each], None, None)[:4] for i in range(0, len(params), each)]
        x, last = swap(input, batch_first), []
        for layer in range(num_layers):
            chosen = slice(layer * directions, (layer + 1) * directions)
            states = [_rows(s, chosen, count) for s in (hx if kind == "lstm" else [hx])]
            if layer and dropout:
                x = call("dropout", x, p=dropout)
            flat = [w for direction in weights[chosen] for w in direction]
            node = call(kind, x, *states, *flat, direction="bidirectional" if bidirectional else "forward", **attrs)
            x = call("item", node, 0)
            last.append([call("item", node, 1 + i) for i in range(STATES[kind])])
        ends = [call("concat", *parts, axis=0) if num_layers > 1 else parts[0] for parts in zip(*last, strict=True)]
        return (swap(x, batch_first), *ends)

    return importer


def _rows(state: Tensor | None, chosen: slice, count: int) -> Any:
    if state is None or chosen.stop - chosen.start == count:
        return state
    return call("strided_slice", state, axes=(0,), begin=(chosen.start,), end=(chosen.stop,))


def packed_from_aten(**arguments: Any) -> Any:
    """Packed sequences, whose steps have batches of their own."""
    raise UnsupportedOperator("a packed sequence (pack_padded_sequence): its lengths are data")


def cell_from_aten(kind: str, **attrs: Any) -> Importer:
    """`aten.lstm_cell` and the like: a single step, in small operators."""

    def importer(
        input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Any:
        cell = Cell(kind, hidden_size(w_hh), w_ih, w_hh, b_ih, b_hh, axis=len(input.shape) - 1, **attrs)
        states = cell.step(cell.project(input), hx if kind == "lstm" else [hx], cell.recurrence())
        return states if kind == "lstm" else states[0]

    return importer


def layer_from_onnx(n: Source) -> tuple[Any, ...]:
    """`LSTM`, `GRU` and `RNN`: batch and time in either order, one direction or both."""
    kind = n.op.lower()
    direction, batch_first = str(n.attr("direction", "forward")), bool(n.attr("layout", 0))
    directions, x = DIRECTIONS[direction], n.tensor(0)
    attrs: dict[str, Any] = {"direction": direction, **_functions(n, kind, directions)}
    _refuse_rare(n, kind, x.shape[0 if not batch_first else 1])
    if kind == "gru":
        attrs["reset_after"] = bool(n.attr("linear_before_reset", 0))
    w, r, b = n.constant(1), n.constant(2), n.constant(3)
    hidden = r.shape[2]
    flat = []
    for d in range(directions):
        rows = np.split(b[d], 2) if b is not None and b.any() else [None, None]
        flat += [reordered(part, kind, hidden) for part in (w[d], r[d], *rows)]
    states = [_state(n, i, batch_first) for i in range(5, 5 + STATES[kind])]
    node = call(kind, swap(x, batch_first), *states, *flat, **attrs)
    length, batch = (x.shape[i] for i in ((1, 0) if batch_first else (0, 1)))
    y = call("reshape", call("item", node, 0), shape=(length, batch, directions, hidden))
    y = call("permute_dims", y, axes=(1, 0, 2, 3) if batch_first else (0, 2, 1, 3))
    return (y, *(swap(call("item", node, 1 + i), batch_first) for i in range(STATES[kind])))


def reordered(rows: Array | None, kind: str, hidden: int) -> Array | None:
    """ONNX's gates in torch's order."""
    if rows is None:
        return None
    parts = rows.reshape(GATES[kind], hidden, *rows.shape[1:])
    return np.ascontiguousarray(parts[np.argsort(ORDER[kind])]).reshape(rows.shape)


def _state(n: Source, index: int, batch_first: bool) -> Any:
    """An initial state, `None` if it is absent or zero."""
    given = n.get(index)
    value = None if given is None else n.known(given)
    absent = given is None or (value is not None and value.dtype != object and not value.any())
    return None if absent else swap(given, batch_first)


def _functions(n: Source, kind: str, directions: int) -> dict[str, str]:
    """The activation of an RNN; other layers have the usual ones or are refused."""
    names = [str(name).lower() for name in n.attr("activations", FUNCTIONS[kind] * directions)]
    if kind == "rnn" and set(names) in ({"tanh"}, {"relu"}):
        return {"activation": names[0]}
    if names != FUNCTIONS[kind] * directions:
        raise UnsupportedOperator(f"{n.op} with the activations {names}")
    return {}


def _refuse_rare(n: Source, kind: str, length: Any) -> None:
    """What no other framework can say: clipping, coupled gates, peepholes, lengths of their own."""
    if n.attr("clip") is not None:
        raise UnsupportedOperator(f"{n.op} with clip={n.attr('clip')}")
    if n.attr("input_forget", 0):
        raise UnsupportedOperator(f"{n.op} with coupled input and forget gates")
    peepholes = n.constant(7) if kind == "lstm" else None
    if peepholes is not None and peepholes.any():
        raise UnsupportedOperator(f"{n.op} with peepholes")
    lengths = n.constant(4)
    if lengths is not None and (not isinstance(length, int) or (lengths != length).any()):
        raise UnsupportedOperator(f"{n.op} whose sequences have lengths of their own")


def weights_to_onnx(kind: str, parameters: Sequence[Any], hidden: int) -> Call:
    """Parameters of one kind, one for each direction, stacked and in ONNX's order; the weights themselves stay."""
    places = np.arange(GATES[kind] * hidden).reshape(GATES[kind], hidden)[list(ORDER[kind])].reshape(1, -1)
    parts = [call("Gather", p, places, axis=0) for p in parameters]
    return parts[0] if len(parts) == 1 else call("Concat", *parts, axis=0)
