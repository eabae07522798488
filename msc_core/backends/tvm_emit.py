"""`MSCGraph` -> Relax for a CPU: images are NHWC from end to end, contractions are our kernels, the rest is legalized.

A value has up to two forms: `logical`, as the graph describes it, and `physical`, NHWC with channels padded to whole
vectors. Each is made from the other on demand, so layouts change only where an operator needs it (at the borders,
around a flatten). What the padding channels hold never reaches a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from msc_core.backends.tvm_kernels import CONTRACTION, Conv, Machine, conv2d, linear
from msc_core.codegen.relax import RelaxBuilder
from msc_core.ir import Array, MSCGraph, Node, Tensor
from msc_core.ops import Bound, Call, bind

ELEMENTWISE = ("... -> ...", "..., ... -> ...")
POOLS = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")


def emit(graph: MSCGraph, machine: Machine) -> Any:
    """The Relax module of a graph with fixed sizes; its kernels await fusion and `tvm_schedule.schedule`."""
    return _Emitter(graph, machine).module()


class _Emitter(RelaxBuilder):
    """`values` holds logical forms; a node that no rule takes is emitted on them, as `to_relax` would."""

    def __init__(self, graph: MSCGraph, machine: Machine) -> None:
        super().__init__(graph)
        self.machine, self.op = machine, self.relax.op
        self.physical: dict[str, Any] = {}

    def module(self) -> Any:
        graph = self.graph
        inputs = [self.parameter(graph.tensors[name]) for name in graph.inputs]
        with self.block.function("main", inputs):
            with self.block.dataflow():
                for node in graph.nodes:
                    self.node(node)
                outputs = [self.block.emit_output(self.value(name)) for name in graph.outputs]
            self.block.emit_func_output(outputs[0] if len(outputs) == 1 else self.relax.Tuple(outputs))
        return self.block.get()

    def node(self, node: Node) -> None:
        """The first rule that fits; the last one fits always."""
        b = bind(node, self.graph.tensors)
        output, *others = node.outputs
        for rule in () if others else (self.contraction, self.pool, self.concat, self.batch_norm, self.elementwise):
            expression = rule(b)
            if expression is not None:
                self.physical[output] = self.block.emit(expression)
                return
        if b.node.op == "linear" and self.fixed(b, 1) and len(b.input(0).shape) > 1:
            self.values[output] = self.block.emit(self.linear(b))
            return
        super().node(node)

    def bind(self, expression: Any, name: str) -> Any:
        """Names do not matter here, and a graph output is an output of its own."""
        return self.block.emit(expression)

    # The two forms of a value

    def value(self, name: str) -> Any:
        """The logical form, made of the physical one if need be."""
        if name in self.physical and name not in self.values:
            value, tensor = self.physical[name], self.graph.tensors[name]
            _, channels, height, width = tensor.shape
            if self.channels(value) != channels:
                value = self.op.strided_slice(value, [3], [0], [channels])
            if height == width == 1:
                value = self.op.reshape(value, tensor.shape)
            else:
                value = self.op.permute_dims(value, (0, 3, 1, 2))
            self.values[name] = self.block.emit(value)
        return super().value(name)

    def image(self, name: str) -> Any:
        """The physical form, made of the logical one if need be."""
        if name not in self.physical:
            n, channels, height, width = self.graph.tensors[name].shape
            value = self.value(name)
            if channels == 1 or height == width == 1:
                value = self.op.reshape(value, (n, height, width, channels))
            else:
                value = self.op.permute_dims(value, (0, 2, 3, 1))
            self.physical[name] = self.block.emit(value)
        return self.physical[name]

    @staticmethod
    def channels(value: Any) -> int:
        """Channels of a physical value, padding included."""
        return int(value.ty.shape[3])

    def is_image(self, tensor: Tensor | None) -> bool:
        """Whether the physical form exists already."""
        return tensor is not None and tensor.name in self.physical

    def fixed(self, b: Bound, *positions: int) -> bool:
        """Whether those inputs are float32 weights (or absent), and the first input is float32."""
        given = [t for i in positions if i < len(b.x) and (t := b.x[i]) is not None]
        return b.input(0).dtype == "float32" and all(t.name in self.graph.weights for t in given)

    def weight(self, b: Bound, position: int) -> Array | None:
        """The array of an input that is a weight."""
        tensor = b.x[position]
        return None if tensor is None else self.graph.weights[tensor.name]

    # Rules: an expression for the physical form, or None

    def contraction(self, b: Bound) -> Any:
        """`conv2d` by our kernel."""
        if b.node.op != "conv2d" or not self.fixed(b, 1, 2):
            return None
        weight, bias = self.graph.weights[b.input(1).name], self.weight(b, 2)
        conv = Conv(weight, bias, b["stride"], b["padding"], b["dilation"], b["groups"])
        x = self.image(b.input(0).name)
        body, weights = conv2d(conv, tuple(int(d) for d in x.ty.shape), self.machine)
        return self.kernel(body, x, weights, "conv2d")

    def linear(self, b: Bound) -> Any:
        """`linear` by our kernel; its output is logical."""
        x = self.value(b.input(0).name)
        weight = self.graph.weights[b.input(1).name]
        body, weights = linear(weight, self.weight(b, 2), tuple(int(d) for d in x.ty.shape), self.machine)
        return self.kernel(body, x, weights, "linear")

    def kernel(self, body: Callable[..., Any], x: Any, weights: list[Array], name: str) -> Any:
        constants = [self.constant(w) for w in weights]
        return self.block.call_te(body, x, *constants, primfunc_name_hint=name, primfunc_attrs=CONTRACTION)

    def pool(self, b: Bound) -> Any:
        """Pooling as its row says it, with the layout changed."""
        tree = b.op.relax(b) if b.node.op in POOLS else None
        if not isinstance(tree, Call) or tree.fn != f"nn.{b.node.op}":
            return None  # no pool, or one that Relax has to be told in several steps
        tree = replace(tree, attrs={**tree.attrs, "layout": "NHWC"})
        x = self.image(b.input(0).name)
        return self.shaped(b, self.expression(tree, lambda tensor: x), self.channels(x))

    def concat(self, b: Bound) -> Any:
        """Concatenation of channels, without the padding."""
        tensors = [t for t in b.x if t is not None]
        if b.node.op != "concat" or b["axis"] % len(tensors[0].shape) != 1 or not all(map(self.is_image, tensors)):
            return None
        parts = []
        for tensor in tensors:
            value = self.physical[tensor.name]
            whole = self.channels(value) == tensor.shape[1]
            parts.append(value if whole else self.op.strided_slice(value, [3], [0], [tensor.shape[1]]))
        return self.op.concat(parts, axis=3)

    def batch_norm(self, b: Bound) -> Any:
        """A norm that could not be folded: a multiplication and an addition."""
        if b.node.op != "batch_norm" or not self.is_image(b.x[0]) or not self.fixed(b, 1, 2, 3, 4):
            return None
        x = self.physical[b.input(0).name]
        gamma, beta, mean, variance = (self.graph.weights[b.input(i).name].astype(np.float64) for i in (1, 2, 3, 4))
        scale = gamma / np.sqrt(variance + b["eps"])
        factors = [self.along_channels(v[None, :, None, None], x) for v in (scale, beta - mean * scale)]
        return self.op.add(self.op.multiply(x, factors[0]), factors[1])

    def elementwise(self, b: Bound) -> Any:
        """Any row that acts on each position alone, if one input is an image and the others fit its padding."""
        images = [t for t in b.x if self.is_image(t)]
        if b.op.axes not in ELEMENTWISE or b.op.movement or not images:
            return None
        first = self.physical[images[0].name]  # type: ignore[union-attr]
        operands = {t.name: self.operand(t, images[0], first) for t in b.x if t is not None}
        if any(value is None for value in operands.values()):
            return None
        expression = self.expression(b.op.relax(b), lambda tensor: operands[tensor.name])
        return self.shaped(b, expression, self.channels(first))

    def operand(self, tensor: Tensor, like: Tensor | None, value: Any) -> Any:
        """A tensor in the physical form of `value`, or None if their channels cannot be aligned."""
        assert like is not None
        if tensor.name in self.graph.weights:
            array = self.graph.weights[tensor.name]
            array = array.reshape(*[1] * (4 - array.ndim), *array.shape)
            return self.along_channels(array, value) if array.shape[1] in (1, like.shape[1]) else None
        if len(tensor.shape) != 4 or tensor.shape[1] != like.shape[1]:
            return None
        found = self.image(tensor.name)
        missing = self.channels(value) - self.channels(found)
        if missing < 0:
            return None
        return self.op.nn.pad(found, [0, 0, 0, 0, 0, 0, 0, missing]) if missing else found

    def along_channels(self, array: Array, value: Any) -> Any:
        """An NCHW constant as NHWC, padded with zeros unless it broadcasts over the channels."""
        array = array.transpose(0, 2, 3, 1)
        missing = self.channels(value) - array.shape[3] if array.shape[3] > 1 else 0
        padded = np.pad(array, [(0, 0)] * 3 + [(0, missing)])
        return self.constant(np.ascontiguousarray(padded, str(value.ty.dtype)))

    def shaped(self, b: Bound, expression: Any, channels: int) -> Any:
        """The expression, checked to have the shape that the graph says."""
        expression = self.block.normalize(expression)
        n, _, height, width = b.out[0].shape
        self.check_shape(expression, (n, height, width, channels), str(b))
        return expression
