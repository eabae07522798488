"""Rows that a target lacks, written once in our own vocabulary and lowered into that target's words."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from msc_core.ir import Node, Tensor
from msc_core.ops.op import Bound, Call, Emit, describe, innermost_first

NAMES = itertools.count()  # of made-up tensors, which nested lowerings must not confuse


def derived(expand: Callable[[Bound], Any], target: str) -> Emit:
    """An emitter: `expand` says the node as a tree of other rows (as an importer would), each said by its own row.

    `target` is "torch", "onnx" or "relax". Inner calls have one output each, unless `item` takes a part of them.
    """

    def emit(b: Bound) -> Any:
        lowering, tree = _Lowering(target), expand(b)
        for inner in innermost_first(tree):
            lowering.lower(inner)
        return lowering.words(lowering.lower(tree))

    return emit


class _Lowering:
    """Lowers the calls of one tree. Each gets made-up tensors, so that its row sees shapes and dtypes as usual."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.stands_for: dict[str, Any] = {}  # the words behind each made-up tensor
        self.done: dict[int, tuple[Call, Any]] = {}  # by identity, so that shared parts stay shared
        self.replaced: dict[int, tuple[Call, Call]] = {}

    def lower(self, value: Any) -> Any:
        """A tensor (or a tuple of them) that stands for the value."""
        if isinstance(value, tuple):
            return tuple(self.lower(part) for part in value)
        if isinstance(value, (np.ndarray, np.generic)):
            return self.stand_in(np.asarray(value), value.shape, value.dtype.name)
        if not isinstance(value, Call):
            return value
        if value.fn == "item":
            source, index = value.args
            return self.lower(source)[index]
        if id(value) not in self.done:
            self.done[id(value)] = value, self.call(value)
        return self.done[id(value)][1]

    def call(self, call: Call) -> Any:
        from msc_core.ops import bind

        inputs = [self.lower(arg) for arg in call.args]
        while inputs and inputs[-1] is None:
            inputs.pop()
        node = Node(call.fn, call.fn, tuple(t.name if t is not None else "" for t in inputs), (), call.attrs)
        bound = bind(node, {t.name: t for t in inputs if t is not None})
        described = describe(bound)
        out = tuple(self.stand_in(None, shape, dtype) for shape, dtype in described)
        words = getattr(bound.op, self.target)(replace(bound, out=out))
        if len(out) > 1 and not isinstance(words, tuple):
            words = tuple(Call("item", (words, i), {"count": len(out)} if self.target == "onnx" else {})
                          for i in range(len(out)))  # fmt: skip
        for tensor, part in zip(out, words if isinstance(words, tuple) else (words,), strict=True):
            self.stands_for[tensor.name] = self.words(part)
        return out if len(out) > 1 else out[0]

    def stand_in(self, words: Any, shape: tuple[Any, ...], dtype: str) -> Tensor:
        name = f"<{next(NAMES)}>"
        self.stands_for[name] = words
        return Tensor(name, shape, dtype)

    def words(self, value: Any) -> Any:
        """The value with made-up tensors replaced by what they stand for."""
        if isinstance(value, Tensor):
            return self.stands_for.get(value.name, value)
        if isinstance(value, (tuple, list)):
            return tuple(self.words(part) for part in value)
        if isinstance(value, slice):
            return slice(*map(self.words, (value.start, value.stop, value.step)))
        if not isinstance(value, Call):
            return value
        if id(value) not in self.replaced:
            args = tuple(self.words(arg) for arg in value.args)
            found = Call(value.fn, args, {key: self.words(attr) for key, attr in value.attrs.items()})
            self.replaced[id(value)] = value, found
            self.replaced[id(found)] = found, found
        return self.replaced[id(value)][1]
