"""PyTorch -> `MSCGraph`, by `torch.export` without decomposition, so that layers stay whole.

Arguments are normalized by the operator's schema and handed to the row that claims the ATen overload; the row answers
with calls in our own vocabulary, which become nodes. Parameters keep their module paths, tied parameters stay one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.errors import MscError, UnsupportedOperator
from msc_core.infer import output_shape
from msc_core.ir import Array, MSCGraph, Node, Tensor, unique
from msc_core.ops import OPS, Call, bind

if TYPE_CHECKING:
    import torch

ATEN: Mapping[str, tuple[str, Callable[..., Call | Tensor]]] = {
    overload: (op.name, importer) for op in OPS.values() for overload, importer in op.aten.items()
}
IDENTITIES = {"alias.default", "contiguous.default", "clone.default", "detach.default", "detach_.default"}


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: tuple[Any, ...] | torch.Tensor = (),
    *,
    name: str = "",
    dynamic_shapes: Any = None,
) -> MSCGraph:
    """The graph of `module` in evaluation mode.

    `example_inputs` are positional tensors; `dynamic_shapes` is as in `torch.export.export`, where a dimension may also
    be given by name: `({0: "N"},)` makes the batch of the first input the symbol `N` (use an example batch of 2 or
    more). The module's training mode is left as it was.

    Raises `UnsupportedOperator` naming the ATen operator and the module and source line that call it, or `MscError`
    with the reason if `torch.export` cannot trace the module.
    """
    import torch

    if isinstance(module, torch.export.ExportedProgram):
        return _Importer(module, name or "program").graph()
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with _quiet():
            program = torch.export.export(module, inputs, dynamic_shapes=_dims(dynamic_shapes), strict=False)
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise MscError(f"torch.export cannot trace {type(module).__name__}: {reason}{_where(error)}") from error
    finally:
        for part in training:
            part.training = True
    return _Importer(program, name or type(module).__name__, dynamic_shapes).graph()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from printing a warning and the half-traced program when it fails; our error says why."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before, logger.disabled = logger.disabled, True
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.disabled = before


def _dims(shapes: Any) -> Any:
    """`dynamic_shapes` with names replaced by `torch.export.Dim`s."""
    import torch

    if isinstance(shapes, str):
        return torch.export.Dim(shapes)
    if isinstance(shapes, dict):
        return {key: _dims(value) for key, value in shapes.items()}
    return type(shapes)(map(_dims, shapes)) if isinstance(shapes, (tuple, list)) else shapes


def _leaves(shapes: Any) -> Iterator[Mapping[int, Any]]:
    """The specification of each input in order: {axis: dimension}."""
    if isinstance(shapes, dict) and shapes and all(isinstance(key, int) for key in shapes):
        yield {axis: dim for axis, dim in shapes.items() if dim is not None}
    elif isinstance(shapes, (dict, tuple, list)) and shapes:
        for spec in shapes.values() if isinstance(shapes, dict) else shapes:
            yield from _leaves(spec)
    else:
        yield {}


def _where(error: Exception) -> str:
    """The last source line outside torch in an error's traceback: the line of the user's model."""
    import traceback

    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    frames = [f for f in frames if f.filename != __file__]
    return f" (at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""


class _Importer:
    """Walks one exported program. `values` maps fx names to our tensors or to plain values."""

    def __init__(self, program: torch.export.ExportedProgram, name: str, dynamic_shapes: Any = None) -> None:
        self.program = program
        self.name = name
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.weights: dict[str, Array] = {}
        self.values: dict[str, Any] = {}
        self.paths: dict[Any, str] = {}  # storage -> the first path that holds it, so that tied parameters stay tied
        self.specs = list(_leaves(dynamic_shapes))
        self.symbols: dict[str, str] = {}  # torch's symbol (s77) -> the name that the user gave
        self.scopes = {self._scope(n) for n in program.graph.nodes if n.op == "call_function"}

    def graph(self) -> MSCGraph:
        signature = self.program.graph_signature
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        stored |= signature.inputs_to_lifted_tensor_constants
        inputs: list[str] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in stored:
                self.values[node.name] = self._weight(stored[node.name])
            elif node.op == "placeholder":
                self._name_symbols(node, self.specs[len(inputs)] if len(inputs) < len(self.specs) else {})
                inputs.append(node.name)
                self.values[node.name] = self._add(Tensor(node.name, self._shape(node), self._dtype(node)))
            elif node.op == "call_function":
                self.values[node.name] = self._function(node)
            elif node.op == "output":
                outputs = [self._resolve(arg) for arg in node.args[0]]
        for tensor in outputs:
            if not isinstance(tensor, Tensor):
                raise UnsupportedOperator(f"{self.name} returns {tensor!r}; only tensors can be outputs")
        names = tuple(t.name for t in outputs)
        return MSCGraph(self.name, tuple(self.nodes), tuple(inputs), names, self.weights, self.tensors)

    def _name_symbols(self, node: torch.fx.Node, spec: Mapping[int, Any]) -> None:
        for axis, dim in enumerate(node.meta["val"].shape):
            if not isinstance(dim, int) and axis in spec:
                self.symbols[str(dim.node.expr)] = getattr(spec[axis], "__name__", str(spec[axis]))

    def _shape(self, node: torch.fx.Node) -> tuple[int | str, ...]:
        return tuple(self._dim(d) for d in node.meta["val"].shape)

    def _dim(self, dim: Any) -> int | str:
        return dim if isinstance(dim, int) else self.symbols.get(str(dim.node.expr), str(dim.node.expr))

    @staticmethod
    def _dtype(node: torch.fx.Node) -> str:
        return str(node.meta["val"].dtype).removeprefix("torch.")

    def _add(self, tensor: Tensor) -> Tensor:
        self.tensors[tensor.name] = tensor
        return tensor

    def _weight(self, path: str) -> Tensor:
        """The tensor at `path` of the module's state; tied parameters share the first path."""
        source = self.program.state_dict.get(path)
        value = source if source is not None else self.program.constants[path]
        path = self.paths.setdefault((value.data_ptr(), value.shape, value.stride()), path)
        if path in self.weights:
            return self.tensors[path]
        array = value.detach().cpu().contiguous().numpy().copy()
        self.weights[path] = array
        return self._add(Tensor(path, array.shape, array.dtype.name))

    def _constant(self, name: str, value: Array) -> Tensor:
        name = unique(name, self.tensors)
        self.weights[name] = np.asarray(value)
        return self._add(Tensor(name, self.weights[name].shape, self.weights[name].dtype.name))

    def _function(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            return self._resolve(source)[index]
        overload = str(node.target).removeprefix("aten.")
        if overload == "sym_size.int" or node.target in (operator.mul, operator.add, operator.floordiv):
            value = node.meta["val"]
            return self._dim(value)
        arguments = self._arguments(node)
        if overload in IDENTITIES:
            return next(iter(arguments.values()))
        if overload not in ATEN:
            raise UnsupportedOperator(f"operator aten.{overload} is not in the op table{self._place(node)}")
        try:
            result = ATEN[overload][1](**arguments)
            return self._emit(result, self._node_name(node), self._scope(node))
        except MscError as error:
            raise type(error)(f"operator aten.{overload}: {error}{self._place(node)}") from error

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        """Arguments by schema name, with graph values resolved; absent optional ones are left out."""
        schema = node.target._schema  # type: ignore[union-attr]
        named = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
        return {key: self._resolve(value) for key, value in named.items()}

    def _resolve(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.fx.Node):
            return self.values[value.name]
        if isinstance(value, (list, tuple)):
            return type(value)(self._resolve(v) for v in value)
        return value

    def _emit(self, value: Any, name: str, scope: str) -> Any:
        """Turn calls of our vocabulary into nodes; the outermost takes `name`, inner ones derive theirs."""
        if isinstance(value, np.ndarray):
            return self._constant(f"{name}.const", value)
        if not isinstance(value, Call):
            return value
        arguments = [self._emit(arg, f"{name}.{value.fn}", scope) for arg in value.args]
        while arguments and arguments[-1] is None:
            arguments.pop()
        taken = {*self.tensors, *(n.name for n in self.nodes)}
        name = unique(name, taken)
        attrs = {k: v for k, v in value.attrs.items() if v != OPS[value.fn].attrs[k]}
        node = Node(name, value.fn, tuple(a.name if a else "" for a in arguments), (name,), attrs, scope)
        self.nodes.append(node)
        return self._add(Tensor(name, output_shape(bind(node, self.tensors)), arguments[0].dtype))

    def _scope(self, node: torch.fx.Node) -> str:
        stack = node.meta.get("nn_module_stack") or {}
        return next(reversed(stack.values()))[0] if stack else ""

    def _node_name(self, node: torch.fx.Node) -> str:
        """The path of the layer that makes the call, or its path and the fx name for calls in a container's forward."""
        scope = self._scope(node)
        leaf = scope and not any(other.startswith(f"{scope}.") for other in self.scopes)
        return scope if leaf else f"{scope}.{node.name}".lstrip(".")

    def _place(self, node: torch.fx.Node) -> str:
        """Where in the user's model: the module path and the source line."""
        trace = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith("File ")]
        place = f", in module {self._scope(node)!r}" if self._scope(node) else ""
        return f"{place} ({trace[-1].removeprefix('File ')})" if trace else place
