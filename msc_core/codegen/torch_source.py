"""The printer of torch modules: the same calls that `torch_module.py` evaluates, as text that stands alone.

Names of a graph are data. They reach the text only as `ascii()` literals or, squeezed to ASCII letters, as variables.
"""

from __future__ import annotations

import keyword
import math
import re
from typing import Any

from msc_core import dims
from msc_core.codegen.torch_calls import TorchCalls
from msc_core.errors import MscError
from msc_core.exchange import SAFETENSORS
from msc_core.ir import Array, Tensor, unique
from msc_core.ops import DEVICE, TRAINING, Call, DType, Size

TEMPLATE = '''\
"""A network written by msc-gym; needs torch only. `load()` returns it with its weights, in evaluation mode."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Scope(nn.Module):
    """Holds weights and further scopes: `scope[0].weight`."""

    def __getitem__(self, name):
        return getattr(self, str(name))


def declare(module, path, shape, dtype=torch.float32, buffer=False):
    """Register zeros of that shape at a dotted path below `module`."""
    *scopes, leaf = path.split(".")
    for scope in scopes:
        if scope not in module._modules:
            module.add_module(scope, Scope())
        module = module[scope]
    zeros = torch.zeros(shape, dtype=dtype)
    if buffer:
        module.register_buffer(leaf, zeros)
    else:
        module.register_parameter(leaf, nn.Parameter(zeros))


class {name}(Scope):
    """{inputs}."""

    def __init__(self):
        super().__init__()
{declarations}

    def forward({parameters}):
{body}


def load(path="{state}"):
    """The network with the weights of a safetensors file; a relative path starts beside this file."""
    dtypes = {{{dtypes}}}
    content = (Path(__file__).parent / path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    state = {{}}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, last = (start + offset for offset in entry["data_offsets"])
            data = torch.frombuffer(bytearray(content[first:last]), dtype=dtypes[entry["dtype"]])
            state[name] = data.reshape(entry["shape"])
    module = {name}()
    module.load_state_dict(state)
    return module.eval()
'''

RESERVED = {*keyword.kwlist, "self", "torch", "nn", "F", "float"}


def print_source(lowered: TorchCalls, state_file: str) -> str:
    """The text of `model.py`, whose `load` reads `state_file`."""
    graph = lowered.graph
    printer = _Printer(lowered)
    inputs = [printer.variable(name) for name in graph.inputs]
    lines = printer.symbols(graph.inputs)
    for node, call, shared in zip(graph.nodes, lowered.calls, lowered.shared, strict=True):
        lines += [printer.line((name,), node.name, part) for name, part in shared.items()]
        lines += [printer.line(node.outputs, node.name, call), *printer.symbols(node.outputs)]
    results = [printer.value(graph.tensors[name]) for name in graph.outputs]
    lines.append(f"return {', '.join(results)}")
    described = [
        f"{v}: {graph.tensors[n].dtype}{list(graph.tensors[n].shape)}"
        for v, n in zip(inputs, graph.inputs, strict=True)
    ]
    dtypes = sorted({w.dtype.name for w in graph.weights.values()})
    return TEMPLATE.format(
        name=identifier(graph.name, "Network", {*RESERVED, "Scope", "declare", "load", "json", "Path"}),
        inputs=_plain(f"Takes {'; '.join(described) or 'nothing'}"),
        declarations="\n".join(f"        {line}" for line in printer.declarations()) or "        pass",
        parameters=", ".join(["self", *inputs]),
        body="\n".join(f"        {line}" for line in lines),
        state=state_file,
        dtypes=", ".join(f'"{SAFETENSORS[d]}": torch.{d}' for d in dtypes),
    )


class _Printer:
    """Gives every value of the graph an expression."""

    def __init__(self, lowered: TorchCalls) -> None:
        self.lowered = lowered
        stored = {*lowered.graph.weights, *lowered.constants}
        self.names: dict[Any, str] = {name: f"self{_access(lowered.paths[name])}" for name in stored}

    def variable(self, name: str, wanted: str = "") -> str:
        """A new variable for the tensor `name`."""
        taken = {*RESERVED, *self.names.values()}
        self.names[name] = identifier(wanted or name, "x", taken)
        return self.names[name]

    def declarations(self) -> list[str]:
        """A line for each weight and constant."""
        lines = []
        for name, array in self.lowered.graph.weights.items():
            path = _quote(self.lowered.paths[name])
            dtype = "" if array.dtype.name == "float32" else f", torch.{array.dtype.name}"
            buffer = ", buffer=True" if name in self.lowered.buffers else ""
            lines.append(f"declare(self, {path}, {array.shape}{dtype}{buffer})")
        for name, array in self.lowered.constants.items():
            lines.append(f'self.register_buffer("{name}", {_tensor(array)}, persistent=False)')
        return lines

    def symbols(self, names: tuple[str, ...]) -> list[str]:
        """A line for each symbol that is read off one of those tensors: `N = x.shape[0]`."""
        lines = []
        for symbol, (name, axis) in self.lowered.symbols.items():
            if name in names:
                self.names[Size(symbol)] = identifier(symbol, "n", {*RESERVED, *self.names.values()})
                lines.append(f"{self.names[Size(symbol)]} = {self.names[name]}.shape[{axis}]")
        return lines

    def line(self, outputs: tuple[str, ...], node: str, call: Any) -> str:
        """The assignment that computes a node."""
        text = self.value(call)
        names = [node if len(outputs) == 1 else name for name in outputs]
        targets = ", ".join(self.variable(name, wanted) for name, wanted in zip(outputs, names, strict=True))
        return f"{targets} = {text}"

    def value(self, value: Any) -> str:
        """The expression of a call, a tensor or a literal."""
        if value is TRAINING:
            return "self.training"
        if value is DEVICE:
            inputs = self.lowered.graph.inputs
            return f"{self.names[inputs[0]]}.device" if inputs else "None"
        if isinstance(value, Size):
            return _size(value.expression, self.names)
        if isinstance(value, DType):
            return f"torch.{value.name}"
        if isinstance(value, slice):
            parts = ["" if v is None else self.value(v) for v in (value.start, value.stop, value.step)]
            return ":".join(parts if parts[2] else parts[:2])
        if isinstance(value, Tensor):
            return self.names[value.name]
        if isinstance(value, Call):
            args = [self.value(arg) for arg in value.args]
            if value.fn in ("item", "index"):
                return f"{args[0]}[{_bare(args[1])}]"
            if not re.fullmatch(r"(F|torch)(\.[A-Za-z_]\w*)+", value.fn, re.ASCII):
                raise MscError(f"torch call {value.fn!r}: expected 'F.<function>' or 'torch.<function>'")
            return f"{value.fn}({', '.join([*args, *(f'{k}={self.value(v)}' for k, v in value.attrs.items())])})"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
        return _literal(value)


def _size(expression: str, names: dict[Any, str]) -> str:
    """An expression over symbols as Python, with the variables that hold them."""
    infix = {f: lambda a, b, f=f: f"({a} {f} {b})" for f in ("+", "-", "*", "//")}
    extremes = {f: lambda a, b, f=f: f"{f}({a}, {b})" for f in ("max", "min")}
    return _bare(dims.interpret(expression, lambda name: names[Size(name)], infix | extremes, str))


def _bare(text: str) -> str:
    """A parenthesized expression without the parentheses around the whole.

    >>> _bare("(a, b)"), _bare("(a + b) * (c)"), _bare("(0,)")
    ('a, b', '(a + b) * (c)', '0,')
    """
    if not text.startswith("("):
        return text
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


def identifier(name: str, fallback: str, taken: set[str]) -> str:
    """A variable name like `name` that is not taken.

    >>> identifier("blocks.0.conv", "x", set()), identifier("0.weight", "x", set()), identifier("if", "x", {"if"})
    ('blocks_0_conv', 'x_0_weight', 'if_1')
    """
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    word = word if word and not word[0].isdigit() else f"{fallback}_{word}".rstrip("_")
    return unique(word, taken)


def _access(path: str) -> str:
    """How a path is read: `.conv.weight`, `[0].weight`, `["a:0"]`."""
    return "".join(_part(part) for part in path.split("."))


def _part(part: str) -> str:
    if _is_simple(part):
        return f".{part}"
    return f"[{part}]" if re.fullmatch(r"0|[1-9][0-9]*", part) else f"[{_quote(part)}]"


def _is_simple(part: str) -> bool:
    # Two leading underscores would be mangled inside of a class.
    return bool(re.fullmatch(r"(?!__)[A-Za-z_][A-Za-z0-9_]*", part)) and not keyword.iskeyword(part)


def _quote(text: str) -> str:
    """A literal, in double quotes where that is easy."""
    quoted = ascii(text)
    return quoted if '"' in quoted else f'"{quoted[1:-1]}"'


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is Ellipsis:
        return "..."
    if value is None or isinstance(value, (bool, int, float, str)):
        return _quote(value) if isinstance(value, str) else repr(value)
    raise MscError(f"cannot print {value!r} ({type(value).__name__}) in torch source")


def _tensor(array: Array) -> str:
    values = ", ".join(map(_literal, array.ravel().tolist()))
    return f"torch.tensor([{values}], dtype=torch.{array.dtype.name}).reshape({array.shape})"


def _plain(text: str) -> str:
    """Text that is safe inside of a docstring."""
    return re.sub(r"[^\w\[\] ,:;]", "", text, flags=re.ASCII)
