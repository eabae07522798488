"""PyTorch -> `MSCGraph`, by `torch.export` without decomposition, so that layers stay whole.

Arguments are normalized by the operator's schema and handed to the row that claims the ATen overload; the row answers
with calls in our own vocabulary, which become nodes. Parameters keep their module paths, tied parameters stay one.
What depends neither on inputs nor on the module's state (masks, positions) is computed once, by torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import MscError, UnsupportedOperator
from msc_core.exchange import from_torch_tensor
from msc_core.frontends.builder import GraphBuilder
from msc_core.frontends.torch_program import export, functional, symbol_names
from msc_core.ir import MSCGraph, Tensor
from msc_core.ops import OPS

if TYPE_CHECKING:
    import torch

ATEN: Mapping[str, Callable[..., Any]] = {
    overload: importer for op in OPS.values() for overload, importer in op.aten.items()
}
IDENTITIES = {"alias.default", "contiguous.default", "clone.default", "detach.default", "lift_fresh_copy.default"}
CHECKS = ("_assert", "sym_constrain_range")  # operators that only check something
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
ZEROS = ("aten.zeros.", "aten.zeros_like.", "aten.new_zeros.")
MAX_FOLDED = 2**22  # elements of a constant that is computed at import


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    dynamic_shapes: Any = None,
) -> MSCGraph:
    """The graph of `module` in evaluation mode.

    `example_inputs` are positional tensors (a mapping is taken as `kwargs`), `kwargs` those by name; both may nest.
    `dynamic_shapes` is as in `torch.export.export`, where a dimension may also be given by name: `({0: "N"},)` makes
    the batch of the first input the symbol `N` (use an example batch of 2 or more). Outputs are flattened; those that
    a dict or dataclass names have that name. The module's training mode is left as it was.

    Raises `UnsupportedOperator` naming the ATen operator and the module and source line that call it, or `MscError`
    with the reason if `torch.export` cannot trace the module.
    """
    import torch

    if isinstance(module, torch.export.ExportedProgram):
        return _Importer(functional(module), dynamic_shapes).graph(name or "program")
    if isinstance(example_inputs, Mapping):
        kwargs, example_inputs = {**example_inputs, **(kwargs or {})}, ()
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    program = export(module, inputs, kwargs or {}, dynamic_shapes)
    return _Importer(program, dynamic_shapes).graph(name or type(module).__name__)


class _Importer:
    """Walks one exported program. `values` maps fx nodes to our tensors, torch tensors (constants) or plain values."""

    def __init__(self, program: torch.export.ExportedProgram, dynamic_shapes: Any = None) -> None:
        self.program = program
        self.build = GraphBuilder()
        self.values: dict[torch.fx.Node, Any] = {}
        self.paths: dict[Any, str] = {}  # storage -> the first path that holds it, so that tied parameters stay tied
        self.specs = list(symbol_names(dynamic_shapes))
        self.symbols: dict[str, str] = {}  # torch's symbol (s77) -> the name that the user gave
        scopes = {self._scope(n) for n in program.graph.nodes if n.op == "call_function"}
        self.containers = {s.rsplit(".", i)[0] for s in scopes for i in range(1, s.count(".") + 1)} | {""}

    def graph(self, name: str) -> MSCGraph:
        """The graph of the whole program."""
        signature = self.program.graph_signature
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        lifted = signature.inputs_to_lifted_tensor_constants
        if changed := list(signature.buffers_to_mutate.values()):
            raise UnsupportedOperator(f"{name} writes to {changed[0]!r} in its forward; a graph has no state to change")
        inputs: list[str] = []
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        given = set(signature.user_inputs)
        self._name_symbols([node for node in placeholders if node.name in given])
        for node in placeholders:
            if node.name in stored:
                self.values[node] = self._weight(stored[node.name])
            elif node.name in lifted:
                self.values[node] = self.program.constants[lifted[node.name]]
            elif "val" in node.meta and hasattr(node.meta["val"], "shape"):
                inputs.append(node.name)
                self.values[node] = self.build.add(Tensor(node.name, self._shape(node.meta["val"]), _dtype(node)))
            else:
                self.values[node] = node.meta.get("val")
        outputs = self._run(self.program.graph_module)[-len(signature.user_outputs) :]
        return self.build.graph(name, inputs, self._name_outputs(name, outputs))

    def _run(self, module: torch.fx.GraphModule) -> list[Any]:
        """Import the nodes of a (sub-)graph, whose placeholders have values already; returns its outputs."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = module.get_submodule(str(node.target))
            elif node.op == "call_function":
                self.values[node] = self._function(node)
            elif node.op == "output":
                return [self._resolve(arg) for arg in node.args[0]]
        return []

    # Names

    def _name_symbols(self, given: list[torch.fx.Node]) -> None:
        """Give torch's symbols the names that `dynamic_shapes` has for the axes of the inputs."""
        for argument, axes in self.specs:
            for node in given:
                if not argument or node.name == argument or node.name.startswith(f"{argument}_"):
                    given.remove(node)
                    shape = getattr(node.meta.get("val"), "shape", ())
                    named = {str(shape[axis].node.expr): name for axis, name in axes.items() if _symbolic(shape[axis])}
                    self.symbols |= named
                    break

    def _name_outputs(self, name: str, outputs: list[Any]) -> list[str]:
        """The outputs' names: one that a dict or dataclass gives replaces the tensor's. Absent outputs are left out."""
        from torch.utils import _pytree as pytree

        spec = self.program.call_spec.out_spec
        keys: list[str] = [""] * len(outputs)
        if spec is not None and spec.num_leaves == len(outputs):
            tree = pytree.tree_unflatten(list(range(len(outputs))), spec)
            for path, leaf in pytree.tree_leaves_with_path(tree):
                if path and isinstance(path[0], (pytree.MappingKey, pytree.GetAttrKey)):
                    keys[leaf] = pytree.keystr(path).strip("[].'\"").replace("']['", ".").replace("'].", ".")
        names = []
        for key, value in zip(keys, outputs, strict=True):
            if value is None:
                continue
            tensor = self._tensor(value, key or "output")
            if not isinstance(tensor, Tensor):
                raise UnsupportedOperator(f"{name} returns {tensor!r}; only tensors can be outputs")
            names.append(self.build.rename(tensor.name, key) if key else tensor.name)
        return names

    def _scope(self, node: torch.fx.Node) -> str:
        stack = node.meta.get("nn_module_stack") or {}
        return next(reversed(stack.values()))[0] if stack else ""

    def _node_name(self, node: torch.fx.Node) -> str:
        """The path of the layer that makes the call, or its path and the fx name for calls in a container's forward."""
        scope = self._scope(node)
        return f"{scope}.{node.name}".lstrip(".") if scope in self.containers else scope

    def _place(self, node: torch.fx.Node) -> str:
        """Where in the user's model: the module path and the source line."""
        trace = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith("File ")]
        place = f", in module {self._scope(node)!r}" if self._scope(node) else ""
        return f"{place} ({trace[-1].removeprefix('File ')})" if trace else place

    # Values

    def _shape(self, value: torch.Tensor) -> tuple[Dim, ...]:
        return tuple(self._dim(d) for d in value.shape)

    def _dim(self, dim: Any) -> Dim:
        if isinstance(dim, int):
            return dim
        names: Mapping[str, Dim] = {symbol: name for symbol, name in self.symbols.items()}
        return dims.substitute(dims.parse(str(dim.node.expr)), names)

    def _weight(self, path: str) -> Tensor:
        """The tensor at `path` of the module's state; tied parameters share the first path."""
        source = self.program.state_dict.get(path)
        value = source if source is not None else self.program.constants[path]
        path = self.paths.setdefault((value.data_ptr(), value.shape, value.stride()), path)
        if path not in self.build.weights:
            self.build.weight(path, from_torch_tensor(value))
        return self.build.tensors[path]

    def _tensor(self, value: Any, name: str) -> Any:
        """A constant that torch computed, as a weight; anything else as it is."""
        import torch

        if isinstance(value, torch.Tensor):
            return self.build.constant(name, from_torch_tensor(value))
        return value

    def _resolve(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return type(value)(self._resolve(v) for v in value)
        if isinstance(value, slice):
            return slice(*map(self._resolve, (value.start, value.stop, value.step)))
        return value

    # Operators

    def _function(self, node: torch.fx.Node) -> Any:
        import torch

        value = node.meta.get("val")
        if node.target is operator.getitem:
            return self._resolve(node.args[0])[node.args[1]]
        if isinstance(value, torch.SymInt):
            if "_local_scalar_dense" in str(node.target) or str(node.target).startswith("aten.item"):
                raise UnsupportedOperator(f"a size or an index is read from a tensor's values{self._place(node)}")
            return self._dim(value)
        if isinstance(value, (int, float, bool)):
            return value
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._region(node)
        overload = str(node.target).removeprefix("aten.")
        if overload.startswith(CHECKS) or value is None or isinstance(value, (torch.SymBool, torch.SymFloat)):
            return None
        arguments = self._arguments(node)
        if (constant := self._fold(node, arguments)) is not None:
            return constant
        if overload.startswith(RECURRENT):
            arguments["hx"] = self._states(node.args[1], arguments["hx"])
        arguments = {key: self._materialize(arg, f"{self._node_name(node)}.{key}") for key, arg in arguments.items()}
        if overload in IDENTITIES:
            return next(iter(arguments.values()))
        importer = ATEN.get(overload) or ATEN.get(_pure(overload))
        if importer is None:
            raise UnsupportedOperator(f"operator aten.{overload} is not in the op table{self._place(node)}")
        try:
            result = importer(**arguments)
            tensors = self.build.emit(result, self._node_name(node), self._scope(node))
            self._check(node, tensors)
            return tensors
        except MscError as error:
            raise type(error)(f"operator aten.{overload}: {error}{self._place(node)}") from error
        except TypeError as error:
            raise UnsupportedOperator(f"operator aten.{overload}: {error}{self._place(node)}") from error

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        """Arguments by schema name, with graph values resolved; absent optional ones are left out."""
        target: Any = node.target
        names: list[str] = [a.name for a in target._schema.arguments]
        named: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        pure = dict(zip(names, _pure_names(node.target), strict=False))
        return {pure.get(key, key): self._resolve(value) for key, value in named.items()}

    def _states(self, source: Any, value: Any) -> Any:
        """Initial states of a recurrent layer, `None` where torch fills them with zeros, whatever their size."""
        import torch

        if isinstance(value, (list, tuple)):
            return [self._states(*pair) for pair in zip(source, value, strict=True)]
        made = isinstance(source, torch.fx.Node) and str(source.target).startswith(ZEROS)
        return None if made or (isinstance(value, torch.Tensor) and not value.any()) else value

    def _materialize(self, value: Any, name: str) -> Any:
        """An argument with the constants that torch computed turned into weights."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._materialize(part, f"{name}.{i}") for i, part in enumerate(value))
        return self._tensor(value, name)

    def _fold(self, node: torch.fx.Node, arguments: Mapping[str, Any]) -> Any:
        """What torch computes from constants alone; `None` if the arguments are not, or the result would be large."""
        import torch
        from torch.utils import _pytree as pytree

        target: Any = node.target
        values = pytree.tree_leaves([self.values[source] for source in node.all_input_nodes])
        results = [r for r in pytree.tree_leaves(node.meta["val"]) if isinstance(r, torch.Tensor)]
        if (
            any(isinstance(value, (Tensor, str)) for value in values)
            or not all(isinstance(n, int) for r in results for n in r.shape)
            or sum(r.numel() for r in results) > MAX_FOLDED
            or torch.Tag.nondeterministic_seeded in target.tags
        ):
            return None
        if str(target).startswith(("aten.empty", "aten.new_empty")):
            return torch.zeros(results[0].shape, dtype=results[0].dtype)
        with torch.no_grad():
            return target(**pytree.tree_map_only(torch.Tensor, torch.clone, dict(arguments)))

    def _region(self, node: torch.fx.Node) -> Any:
        """A region that torch wrapped (`no_grad`, `autocast`), imported in place."""
        import torch

        modules = [i for i, a in enumerate(node.args) if isinstance(self._resolve(a), torch.fx.GraphModule)]
        if len(modules) != 1 or not str(node.target).startswith(("wrap", "hints_wrapper")):
            raise UnsupportedOperator(f"control flow {node.target} has no row in the op table{self._place(node)}")
        module = self._resolve(node.args[modules[0]])
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        for place, value in zip(places, node.args[modules[0] + 1 :], strict=True):
            self.values[place] = self._resolve(value)
        return self._run(module)

    def _check(self, node: torch.fx.Node, found: Any) -> None:
        """Our rules of shapes and dtypes against torch's: a difference must not pass silently."""
        from torch.utils import _pytree as pytree

        results = found if isinstance(found, tuple) else (found,)
        for tensor, expected in zip(results, pytree.tree_leaves(node.meta["val"]), strict=False):
            if not isinstance(tensor, Tensor):
                continue
            shape, dtype = self._shape(expected), str(expected.dtype).removeprefix("torch.")
            same = len(shape) == len(tensor.shape) and all(
                a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(shape, tensor.shape, strict=True)
            )
            if not same or tensor.dtype != dtype:
                raise UnsupportedOperator(
                    f"the graph has {tensor.dtype}{list(tensor.shape)} where torch has {dtype}{list(shape)}"
                )


def _symbolic(dim: Any) -> bool:
    return not isinstance(dim, int)


def _pure(overload: str) -> str:
    """`relu_.default` -> `relu.default`: on a value of its own, an in-place operator is a pure one."""
    base, _, kind = overload.partition(".")
    return f"{base.removesuffix('_')}.{kind}"


def _pure_names(target: Any) -> list[str]:
    """The arguments of the pure operator of an in-place one: `dropout_(self)` is `dropout(input)`."""
    import torch

    base, _, kind = str(target).removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, base.removesuffix("_"), None) if base.endswith("_") else None
    return [a.name for a in getattr(packet, kind)._schema.arguments] if hasattr(packet, kind) else []


def _dtype(node: torch.fx.Node) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")
