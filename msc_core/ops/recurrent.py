"""Recurrent networks, kept whole: LSTM, GRU and RNN. A node is one layer, in one direction or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from msc_core.exchange import numpy_dtype
from msc_core.ir import Attr
from msc_core.ops.derived import derived
from msc_core.ops.op import Bound, Call, Importer, Op, call, sizes
from msc_core.ops.recurrent_import import (
    DIRECTIONS,
    cell_from_aten,
    layer_from_onnx,
    layers_from_aten,
    packed_from_aten,
    weights_to_onnx,
)
from msc_core.ops.recurrent_steps import GATES, STATES, Cell, cells, unrolled
from msc_core.ops.signature import Sizes
from msc_core.ops.window import product


def recurrent_axes(b: Bound) -> str:
    """Input, initial states, then weights and biases of each direction. A hidden unit goes in all gates or in none.

    Time comes out as a letter of its own, because steps are not independent; both directions keep the same units.
    """
    directions, states = DIRECTIONS[b["direction"]], STATES[b.op.name]
    rows = f"({GATES[b.op.name]} h)" if GATES[b.op.name] > 1 else "h"
    parameters = f"{rows} i, {rows} h, {rows}?, {rows}?"
    state = f"{directions} n h"
    inputs = ["t n i", *[f"{state}?"] * states, *[parameters] * directions]
    outputs = ["T n h" if directions == 1 else "T n (2 h)", *[state] * states]
    return f"{', '.join(inputs)} -> {', '.join(outputs)}"


def recurrent_macs(b: Bound, sizes: Sizes) -> int:
    """Every gate of every step reads the input and the hidden state."""
    rows = DIRECTIONS[b["direction"]] * GATES[b.op.name] * product((sizes["t"], sizes["n"], sizes["h"]))
    return rows * product((sizes["i"],)) + rows * product((sizes["h"],))


def biases(b: Bound, cell: Cell) -> list[Any]:
    """Both biases of a direction, zeros for one that is absent."""
    zeros = np.zeros(GATES[cell.kind] * cell.hidden, numpy_dtype(b.input(0).dtype))
    return [zeros if bias is None else bias for bias in (cell.b_ih, cell.b_hh)]


def has_biases(b: Bound) -> bool:
    """Whether any direction has any bias."""
    return any(bias is not None for cell in cells(b) for bias in (cell.b_ih, cell.b_hh))


def recurrent_to_torch(b: Bound) -> Any:
    """`torch.lstm` and the like, which want every state; a reversed layer reads its input backwards."""
    directions = cells(b)
    if not directions[0].reset_after:
        return derived(unrolled, "torch")(b)
    biased, states = has_biases(b), STATES[b.op.name]
    initial = tuple(
        call("torch.Tensor.new_zeros", b.x[0], sizes(b.out[1].shape)) if s is None else s for s in b.x[1 : 1 + states]
    )
    weights = tuple(w for c in directions for w in (c.w_ih, c.w_hh, *(biases(b, c) if biased else ())))
    backward = b["direction"] == "reverse"
    x = call("torch.flip", b.x[0], (0,)) if backward else b.x[0]
    name = f"torch.rnn_{b['activation']}" if b.op.name == "rnn" else f"torch.{b.op.name}"
    hx = initial if b.op.name == "lstm" else initial[0]
    result = call(name, x, hx, weights, biased, 1, 0.0, False, len(directions) == 2, False)
    if not backward:
        return result
    y, *last = (call("item", result, i) for i in range(1 + states))
    return call("torch.flip", y, (0,)), *last


def recurrent_to_onnx(b: Bound) -> tuple[Any, ...]:
    """`LSTM`, `GRU` and `RNN`, which keep the directions on an axis of their own."""
    kind, directions = b.op.name, cells(b)
    hidden, states = directions[0].hidden, STATES[kind]
    w, r = ([getattr(c, name) for c in directions] for name in ("w_ih", "w_hh"))
    stacked = [weights_to_onnx(kind, part, hidden) for part in (w, r)]
    bias: Call | None = None
    if has_biases(b):
        halves = zip(*(biases(b, c) for c in directions), strict=True)
        bias = call("Concat", *(weights_to_onnx(kind, half, hidden) for half in halves), axis=1)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": b["direction"]}
    if kind == "gru":
        attrs["linear_before_reset"] = int(b["reset_after"])
    if kind == "rnn":
        attrs["activations"] = (b["activation"].capitalize(),) * len(directions)
    node = call(kind.upper(), b.x[0], *stacked, bias, None, *b.x[1 : 1 + states], **attrs)
    y, *last = (call("item", node, i, count=1 + states) for i in range(1 + states))
    if len(directions) == 1:
        return call("Squeeze", y, np.asarray([1])), *last
    return call("Reshape", call("Transpose", y, perm=(0, 2, 1, 3)), np.asarray([0, 0, -1])), *last


def recurrent(name: str, aten: Mapping[str, Importer], attrs: Mapping[str, Attr]) -> Op:
    """A row for one kind of layer: `y` of all steps, then the last states. An absent initial state is zero."""
    return Op(
        name,
        axes=recurrent_axes,
        attrs={"direction": "forward", **attrs},
        new=lambda b, known: {"T": known["t"]},
        macs=recurrent_macs,
        aten=aten,
        from_onnx={name.upper(): layer_from_onnx},
        torch=recurrent_to_torch,
        onnx=recurrent_to_onnx,
        relax=derived(unrolled, "relax"),
    )


RECURRENT = [
    recurrent(
        "lstm",
        {
            "lstm.input": layers_from_aten("lstm"), "lstm.data": packed_from_aten,
            "lstm_cell.default": cell_from_aten("lstm"),
        },
        {},
    ),
    recurrent(
        "gru",
        {
            "gru.input": layers_from_aten("gru"), "gru.data": packed_from_aten,
            "gru_cell.default": cell_from_aten("gru"),
        },
        {"reset_after": True},
    ),
    recurrent(
        "rnn",
        {
            f"rnn_{kind}{form}": importer
            for kind in ("tanh", "relu")
            for form, importer in (
                (".input", layers_from_aten("rnn", activation=kind)), (".data", packed_from_aten),
                ("_cell.default", cell_from_aten("rnn", activation=kind)),
            )
        },
        {"activation": "tanh"},
    ),
]  # fmt: skip
