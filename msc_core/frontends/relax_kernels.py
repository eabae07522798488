"""Kernels that TVM's own front ends write in place of operators: which operator one computes, if that can be proved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msc_core.codegen.relax import import_tvm

Meaning = tuple[str, dict[str, Any]]  # a Relax operator, and its attributes


def meaning(kernel: Any, name: str, arguments: list[Any]) -> Meaning | None:
    """The Relax operator that a kernel computes of its arguments (Relax expressions), `None` if it is not known.

    The name is only a hint: TVM's library is asked for the kernel of that operator, and both must be the same program.
    """
    import tvm_ffi

    relax = import_tvm().relax
    for found, function, extra in _candidates(re.sub(r"\d+$", "", name), arguments):
        block = relax.BlockBuilder()
        variables = [relax.Var(f"x{i}", argument.ty) for i, argument in enumerate(arguments)]
        with block.function("main", variables):
            block.emit_func_output(block.emit_te(function, *variables, **extra))
        others = [f for var, f in block.get().functions.items() if var.name_hint != "main"]
        if len(others) == 1 and tvm_ffi.structural_equal(kernel, others[0], map_free_vars=True):
            return found
    return None


def _candidates(name: str, arguments: list[Any]) -> Iterator[tuple[Meaning, Any, dict[str, Any]]]:
    from tvm import topi

    if name in ("maximum", "minimum") and len(arguments) == 2:
        yield (name, {}), getattr(topi, name), {}
    if name == "flip" and len(arguments) == 1:
        for axis in range(arguments[0].ty.ndim):
            yield ("flip", {"axis": axis}), topi.flip, {"axis": axis}
