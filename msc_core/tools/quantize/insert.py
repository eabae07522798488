"""Write a plan's quantization into the graph as `quantize` and `dequantize` nodes, which mean the same everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from msc_core.errors import InvalidPlan, nearest
from msc_core.ir import Array, Attr, MSCGraph, Node, Tensor, consumers, unique
from msc_core.plan import Quantized

BIASED = ("conv1d", "conv2d", "conv3d", "linear")  # their third input is added to an integer sum


def quantize(graph: MSCGraph, how: Mapping[str, Quantized], rounded: Mapping[str, Array] | None = None) -> MSCGraph:
    """The graph with the tensors in `how` stored as integers.

    1. A weight becomes integers and a `dequantize`; `rounded` gives them where they are not the nearest ones.
    2. An activation gets a `quantize` and a `dequantize` behind it, which its consumers read; a graph output stays.
    3. The bias of a layer whose input and weight are quantized becomes int32 in units of both scales' product.

    Raises `InvalidPlan` for a tensor or consumer that the graph does not have, or scales that do not fit.
    """
    if not how:
        return graph
    return _Insertion(graph, how, rounded or {}).run()


def integers(array: Array, how: Quantized) -> Array:
    """`array` as the integers nearest to it (ties to even), of dtype `how.dtype` and the same shape."""
    low, high = how.limits
    shaped, scale, zero = blocked(array, how)
    return (np.rint(shaped / scale) + zero).clip(low, high).astype(how.dtype).reshape(array.shape)


def floats(array: Array, how: Quantized) -> Array:
    """What the integers stand for, float32."""
    shaped, scale, zero = blocked(array, how)
    return ((shaped.astype(np.int32) - zero) * scale).astype(np.float32).reshape(array.shape)


def blocked(array: Array, how: Quantized) -> tuple[Array, Array, Array]:
    """The array in a shape with which its float32 scales and int32 zero points broadcast, and these."""
    scale, zero = np.asarray(how.scale, np.float32), np.asarray(how.zero_point, np.int32)
    if how.block:
        return array.reshape(len(scale), how.block), scale[:, None], zero[:, None]
    if how.axis is not None:
        shape = [1] * array.ndim
        shape[how.axis] = -1
        return array, scale.reshape(shape), zero.reshape(shape)
    return array, scale[0], zero[0]


class _Insertion:
    """One pass over the nodes; what is quantized is written in front of the first node that reads it."""

    def __init__(self, graph: MSCGraph, how: Mapping[str, Quantized], rounded: Mapping[str, Array]) -> None:
        self.graph, self.how, self.rounded = graph, how, rounded
        self.readers = consumers(graph)
        self.weights, self.tensors = dict(graph.weights), dict(graph.tensors)
        self.names = {node.name for node in graph.nodes}
        self.nodes: list[Node] = []
        self.stand_ins: dict[str, str] = {}  # tensor -> what its consumers read instead
        for name, quantized in how.items():
            self._check(name, quantized)

    def run(self) -> MSCGraph:
        """The new graph."""
        for node in self.graph.nodes:
            inputs = tuple(self._read(name, node) for name in node.inputs)
            if node.op in BIASED and len(inputs) > 2 and inputs[2] and inputs[:2] != node.inputs[:2]:
                inputs = (*inputs[:2], self._bias(node, inputs[2]))
            self.nodes.append(dataclasses.replace(node, inputs=inputs))
        return self.graph.replace(nodes=tuple(self.nodes), weights=self.weights, tensors=self.tensors)

    def _read(self, name: str, node: Node) -> str:
        how = self.how.get(name)
        if how is None or (how.consumers and node.name not in how.consumers):
            return name
        if name not in self.stand_ins:
            make = self._weight if name in self.graph.weights else self._activation
            self.stand_ins[name] = make(name, how)
        return self.stand_ins[name]

    def _activation(self, name: str, how: Quantized) -> str:
        shape, along = self.tensors[name].shape, _along(how)
        scale, zero = self._parameters(name, how)
        stored = self._node(
            "quantize", (name, scale, zero), Tensor(f"{name}.int", shape, how.dtype), dtype=how.dtype, **along
        )
        limits = np.iinfo(how.dtype)
        if how.limits != (limits.min, limits.max):
            low, high = map(float, how.limits)
            stored = self._node("clip", (stored,), Tensor(f"{name}.clip", shape, how.dtype), min=low, max=high)
        return self._node("dequantize", (stored, scale, zero), Tensor(f"{name}.dequantize", shape), **along)

    def _weight(self, name: str, how: Quantized) -> str:
        array = self.graph.weights[name]
        stored = self.rounded[name] if name in self.rounded else integers(array, how)
        parameters = self._parameters(name, how)
        if not how.block:
            whole = self._constant(f"{name}.int", stored)
            return self._node(
                "dequantize", (whole, *parameters), Tensor(f"{name}.dequantize", array.shape), **_along(how)
            )
        rows = stored.reshape(len(how.scale), how.block)
        whole = self._constant(f"{name}.int", rows)
        found = self._node("dequantize", (whole, *parameters), Tensor(f"{name}.dequantize", rows.shape), axis=0)
        return self._node("reshape", (found,), Tensor(f"{name}.reshape", array.shape), shape=array.shape)

    def _bias(self, node: Node, name: str) -> str:
        """An int32 bias, where the product of the scales has one value for each output or one for all."""
        data, weight = (self.how.get(t) for t in node.inputs[:2])
        if data is None or weight is None or name not in self.graph.weights or len(data.scale) > 1 or weight.block:
            return name
        if weight.axis not in (None, 0):
            return name
        scale = np.float32(data.scale[0]) * np.asarray(weight.scale, np.float32)
        limits = np.iinfo(np.int32)
        whole = np.rint(self.graph.weights[name] / scale.astype(np.float64)).clip(limits.min, limits.max)
        stored = self._constant(f"{node.name}.bias.int", whole.astype(np.int32))
        factor = self._constant(f"{node.name}.bias.scale", scale if len(scale) > 1 else scale.reshape(()))
        return self._node("dequantize", (stored, factor), Tensor(f"{node.name}.bias.dequantize", whole.shape), axis=0)

    def _parameters(self, name: str, how: Quantized) -> tuple[str, str]:
        """Scale and zero point as weights, without axes where there is one for the whole tensor."""
        scale, zero = np.asarray(how.scale, np.float32), np.asarray(how.zero_point, how.dtype)
        if how.axis is None:
            scale, zero = scale.reshape(()), zero.reshape(())
        return self._constant(f"{name}.scale", scale), self._constant(f"{name}.zero_point", zero)

    def _constant(self, name: str, array: Array) -> str:
        name = unique(name, self.tensors)
        self.weights[name] = array
        self.tensors[name] = Tensor(name, array.shape, array.dtype.name)
        return name

    def _node(self, op: str, inputs: tuple[str, ...], output: Tensor, **attrs: Attr) -> str:
        """Append a node; its output, whose name it has too unless that is taken."""
        output = dataclasses.replace(output, name=unique(output.name, self.tensors))
        self.tensors[output.name] = output
        name = unique(output.name, self.names)
        self.names.add(name)
        self.nodes.append(Node(name, op, inputs, (output.name,), attrs))
        return output.name

    def _check(self, name: str, how: Quantized) -> None:
        if name not in self.graph.tensors:
            raise InvalidPlan(f"quantize: no tensor {name!r}{nearest(name, self.graph.tensors)}")
        tensor, readers = self.graph.tensors[name], [node.name for node in self.readers.get(name, [])]
        if tensor.dtype != "float32":
            raise InvalidPlan(f"quantize: tensor {name!r} is {tensor.dtype}; expected float32")
        for reader in how.consumers:
            if reader not in readers:
                raise InvalidPlan(f"quantize: node {reader!r} does not read tensor {name!r}{nearest(reader, readers)}")
        if how.axis is None:
            return
        if not -len(tensor.shape) <= how.axis < len(tensor.shape):
            raise InvalidPlan(f"quantize: tensor {name!r} has {len(tensor.shape)} axes; the plan's axis is {how.axis}")
        size, rest = tensor.shape[how.axis], 1
        if how.block:
            if name not in self.graph.weights or how.axis % len(tensor.shape) != 0:
                raise InvalidPlan(
                    f"quantize: blocks are for axis 0 of weights; {name!r} is not one, or axis {how.axis}"
                )
            row = self.graph.weights[name][0].size
            if row % how.block:
                raise InvalidPlan(f"quantize: blocks of {how.block} do not divide a row of {name!r}, which has {row}")
            rest = row // how.block
        if isinstance(size, int) and len(how.scale) != size * rest:
            raise InvalidPlan(f"quantize: tensor {name!r} needs {size * rest} scales; the plan has {len(how.scale)}")


def _along(how: Quantized) -> dict[str, Attr]:
    return {} if how.axis is None else {"axis": how.axis}
