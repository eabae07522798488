"""Control flow of ONNX whose course is known at import: branches in place, loops unrolled."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.frontends.builder import GraphBuilder
from msc_core.ir import Array, Tensor
from msc_core.ops import call

if TYPE_CHECKING:
    import onnx

MAX_UNROLLED = 4096  # nodes that a loop may become
Inputs = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Frame:
    """Where nodes are imported: the names in sight, the opset, and how names inside are called in our graph.

    The model's own graph has no prefix and no results; of a function or branch, `results` are its outputs' names.
    """

    scope: ChainMap[str, Tensor]
    version: int
    prefix: str = ""
    results: Mapping[str, str] = field(default_factory=dict)
    outermost: bool = False

    def name(self, output: str) -> str:
        """Our name for an output; "" for an absent one."""
        return output and (self.results.get(output) or f"{self.prefix}{output}")


class Importer(Protocol):
    """What control flow needs of the importer that meets it."""

    build: GraphBuilder

    def body(self, graph: onnx.GraphProto, frame: Frame) -> list[Tensor]:
        """Import a graph's weights and nodes; returns its outputs."""

    def known(self, tensor: Tensor) -> Array | None:
        """The value of a tensor, if it is known."""

    def constant(self, name: str, value: Array | None, dtype: str = "int64") -> Tensor | None:
        """A tensor for a value that is known."""

    @staticmethod
    def title(node: onnx.NodeProto, frame: Frame) -> str:
        """The name of a node."""


def branch(
    importer: Importer, node: onnx.NodeProto, inputs: Inputs, attrs: Mapping[str, Any], frame: Frame
) -> Sequence[Tensor | None]:
    """The branch that a known condition takes."""
    condition = importer.known(inputs[0]) if inputs[0] is not None else None
    if condition is None or condition.dtype == object or condition.size != 1:
        raise UnsupportedOperator("its condition depends on the network's inputs; expected a constant")
    graph = attrs["then_branch" if condition.item() else "else_branch"]
    results = {o.name: frame.name(out) for o, out in zip(graph.output, node.output, strict=False)}
    return importer.body(graph, Frame(frame.scope.new_child(), frame.version, frame.prefix, results))


def loop(
    importer: Importer, node: onnx.NodeProto, inputs: Inputs, attrs: Mapping[str, Any], frame: Frame
) -> Sequence[Tensor | None]:
    """A loop whose number of turns is known, unrolled."""
    body = attrs["body"]
    count, condition = (None if t is None else importer.known(t) for t in (*inputs, None, None)[:2])
    for value, given in zip((count, condition), inputs, strict=False):
        if given is not None and (value is None or value.dtype == object or value.size != 1):
            raise UnsupportedOperator("how often it runs depends on the network's inputs; expected a constant")
    carried = list(inputs[2:])
    collected: list[list[Tensor]] = [[] for _ in body.output[1 + len(carried) :]]
    turn, go_on = 0, True if condition is None else bool(condition.item())
    while go_on and (count is None or turn < count.item()):
        if (turn + 1) * len(body.node) > MAX_UNROLLED:
            raise UnsupportedOperator(f"unrolled it would have more than {MAX_UNROLLED} nodes")
        prefix = f"{importer.title(node, frame)}/{turn}/"
        scope = frame.scope.new_child()
        state = [
            importer.constant(f"{prefix}turn", np.asarray(turn)),
            importer.constant(f"{prefix}go_on", np.asarray(True)),
        ]
        for value, tensor in zip(body.input, [*state, *carried], strict=True):
            if tensor is not None:
                scope[value.name] = tensor
        condition_, *results = importer.body(body, Frame(scope, frame.version, prefix))
        decided = importer.known(condition_)
        if decided is None or decided.dtype == object:
            raise UnsupportedOperator("when it ends depends on the network's inputs; expected a constant")
        carried = list(results[: len(carried)])
        for parts, tensor in zip(collected, results[len(carried) :], strict=True):
            parts.append(tensor)
        turn, go_on = turn + 1, bool(decided.item())
    if collected and not turn:
        raise UnsupportedOperator("it never runs, so what it collects has no shape")
    return [*carried, *(stack(importer, parts, importer.title(node, frame)) for parts in collected)]


def scan(
    importer: Importer, node: onnx.NodeProto, inputs: Inputs, attrs: Mapping[str, Any], frame: Frame
) -> Sequence[Tensor | None]:
    """A loop over axes of known size, unrolled."""
    body, count = attrs["body"], attrs["num_scan_inputs"]
    carried: list[Any] = list(inputs[: len(inputs) - count])
    scanned = [tensor for tensor in inputs[len(carried) :] if tensor is not None]
    outputs = len(body.output) - len(carried)
    axes = [a % len(t.shape) for a, t in zip(attrs.get("scan_input_axes", (0,) * count), scanned, strict=True)]
    lengths = {tensor.shape[axis] for tensor, axis in zip(scanned, axes, strict=True)}
    (length,) = lengths if len(lengths) == 1 else ("",)
    if isinstance(length, str) or not length:
        raise UnsupportedOperator(f"it runs over axes of sizes {sorted(map(str, lengths))}; expected one number")
    if length * len(body.node) > MAX_UNROLLED:
        raise UnsupportedOperator(f"unrolled it would have more than {MAX_UNROLLED} nodes")
    back_in = attrs.get("scan_input_directions", (0,) * count)
    back_out = attrs.get("scan_output_directions", (0,) * outputs)
    collected: list[list[Tensor]] = [[] for _ in range(outputs)]
    for turn in range(length):
        prefix, scope = f"{importer.title(node, frame)}/{turn}/", frame.scope.new_child()
        parts = []
        for i, (tensor, axis, back) in enumerate(zip(scanned, axes, back_in, strict=True)):
            at = np.asarray(length - 1 - turn if back else turn)
            parts.append(importer.build.emit(call("take", tensor, at, axis=axis), f"{prefix}part{i}"))
        for value, given in zip(body.input, [*carried, *parts], strict=True):
            scope[value.name] = given
        results = importer.body(body, Frame(scope, frame.version, prefix))
        carried = list(results[: len(carried)])
        for rows, tensor in zip(collected, results[len(carried) :], strict=True):
            rows.append(tensor)
    axes = attrs.get("scan_output_axes", (0,) * outputs)
    turned = [rows[::-1] if back else rows for rows, back in zip(collected, back_out, strict=True)]
    title = importer.title(node, frame)
    return [*carried, *(stack(importer, rows, title, axis) for rows, axis in zip(turned, axes, strict=True))]


def stack(importer: Importer, parts: Sequence[Tensor], name: str, axis: int = 0) -> Tensor:
    """What a loop collected, along a new axis."""
    axis %= len(parts[0].shape) + 1
    rows = [call("reshape", part, shape=(*part.shape[:axis], 1, *part.shape[axis:])) for part in parts]
    tensor = importer.build.emit(call("concat", *rows, axis=axis), name)
    assert isinstance(tensor, Tensor)
    return tensor


FORMS: Mapping[str, Callable[..., Sequence[Tensor | None]]] = {"If": branch, "Loop": loop, "Scan": scan}
