"""A torch module as an exported program that is safe to read as a pure function."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msc_core.errors import MscError

if TYPE_CHECKING:
    import torch


def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """`torch.export` in evaluation mode, without decomposition; the training mode is left as it was.

    Raises `MscError` with torch's reason and the line of the user's model.
    """
    import torch

    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with _quiet():
            program = torch.export.export(
                module, args, dict(kwargs), dynamic_shapes=_dims(dynamic_shapes), strict=False
            )
            return functional(program)
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise MscError(f"torch.export cannot trace {type(module).__name__}: {reason}{_where(error)}") from error
    finally:
        for part in training:
            part.training = True


def functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without writes that are seen through another name; others are as good as pure.

    `y.relu_()` on a value of its own is a pure `relu`; so is one on an input, whose caller sees no change. A write to
    something that is read under another name later, or to the module's state, is not: torch functionalizes those.
    """
    return program.run_decompositions({}) if _writes_are_seen(program) else program


def _writes_are_seen(program: torch.export.ExportedProgram) -> bool:
    import torch

    storages: dict[int, list[torch.fx.Node]] = {}
    position = {node: i for i, node in enumerate(program.graph.nodes)}
    for node in program.graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            storages.setdefault(_storage(node), []).append(node)
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write or not isinstance(value, torch.fx.Node):
                continue
            alike = storages.get(_storage(value), []) if isinstance(value.meta.get("val"), torch.Tensor) else []
            for other in alike:
                state = other.op == "placeholder" and other.name not in program.graph_signature.user_inputs
                later = other is not node and any(position[user] > position[node] for user in other.users)
                if state or later:
                    return True
    return False


def _storage(node: torch.fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


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


def symbol_names(shapes: Any) -> Iterator[tuple[str, Mapping[int, str]]]:
    """The specification of each input in order: its name if `dynamic_shapes` says it, and {axis: symbol}."""
    named = isinstance(shapes, dict) and all(isinstance(key, str) for key in shapes)
    for key, value in shapes.items() if named else [("", shapes)]:
        for spec in _leaves(value):
            yield key, {axis: name for axis, dim in spec.items() if (name := _name(dim))}


def _name(dim: Any) -> str:
    return dim if isinstance(dim, str) else getattr(dim, "__name__", "")


def _leaves(shapes: Any) -> Iterator[Mapping[int, Any]]:
    if isinstance(shapes, dict) and shapes and all(isinstance(key, int) for key in shapes):
        yield shapes
    elif isinstance(shapes, (dict, tuple, list)) and shapes:
        for spec in shapes.values() if isinstance(shapes, dict) else shapes:
            yield from _leaves(spec)
    else:
        yield {}


def _where(error: Exception) -> str:
    """The last source line outside torch in an error's traceback: the line of the user's model."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    frames = [f for f in frames if f.filename != __file__]
    return f" (at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
