"""One fixed schedule for TVM kernels on a CPU: no search, the same code for the same graph.

A contraction (`tvm_kernels.py`) becomes: for each tile of output channels, for each row, for each tile of positions,
keep [positions x vectors] accumulators in registers over the whole reduction, then write them once through the
epilogue. The channel tile is outermost, so the weights that it needs stay in the cache while the image passes by.
Everything else has its innermost axis vectorized where it is a multiple of the vector, reductions outside it.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from msc_core.backends.tvm_kernels import WIDTH, Machine

UNROLLED_WINDOW = 25  # positions of a depthwise kernel that are written out, so that neighbours share loads
WORTH_A_THREAD = 2**14  # elements below which waking other cores costs more than it saves


def schedule(module: Any, machine: Machine) -> Any:
    """The module with every kernel scheduled; one of symbolic shapes, or of unforeseen form, stays as it is."""
    from tvm import s_tir, tirx

    scheduled = {}
    for variable, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            function = _schedule_function(function, machine, s_tir)
        scheduled[variable] = function
    for variable, function in scheduled.items():
        module.update_func(variable, function)
    return module


def _schedule_function(function: Any, machine: Machine, s_tir: Any) -> Any:
    """The first form that fits; a schedule that TVM refuses leaves the function untouched."""
    import tvm

    for form in (_contraction, _plain):
        attempt = s_tir.Schedule(tvm.IRModule({"main": function}), error_render_level="none")
        with contextlib.suppress(s_tir.schedule.ScheduleError, _Unfit):
            form(attempt, machine)
            return attempt.mod["main"].with_attr("tirx.is_scheduled", True)
    return function


class _Unfit(Exception):
    """A function is not of the form that a schedule is for."""


def _contraction(sch: Any, machine: Machine) -> None:
    """The schedule of the module's docstring, for a function that holds an `acc` block."""
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    acc = next((b for b in blocks if WIDTH in sch.get(b).annotations), None)
    if acc is None:
        raise _Unfit
    width = int(sch.get(acc).annotations[WIDTH])
    before = sch.get_producers(acc)
    final = _inline_chain(sch, acc)
    for block in before:
        _injective(sch, block, machine)
    loops = sch.get_loops(acc)
    kinds = [int(v.iter_type) for v in sch.get(acc).iter_vars]
    space = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    *outer, position, tiles, channel = space
    batch, rows = outer[:1], outer[1:]
    far, near = sch.split(position, [None, width])
    vectors, lanes = sch.split(channel, [None, machine.lanes])
    outermost = [*batch, tiles, *rows, far]
    sch.reorder(*outermost, *reduction, near, vectors, lanes)
    sch.reverse_compute_at(final, far, preserve_unit_loops=True)
    _epilogue(sch, final, machine)
    for loop in (near, vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)
    window = math.prod(int(sch.get(loop).extent) for loop in reduction)
    if len(reduction) == 2 and window <= UNROLLED_WINDOW:
        for loop in reduction:
            sch.unroll(loop)
    sch.decompose_reduction(acc, reduction[0])
    sch.set_scope(acc, 0, "local")
    if machine.cores > 1:
        sch.parallel(sch.fuse(*outermost[:-1]))


def _inline_chain(sch: Any, block: Any) -> Any:
    """Inline what follows `block` into the last of it, which is returned."""
    while inner := [after for after in sch.get_consumers(block) if sch.get_consumers(after)]:
        sch.compute_inline(inner[0])
    following = sch.get_consumers(block)
    if len(following) != 1:
        raise _Unfit
    return following[0]


def _epilogue(sch: Any, final: Any, machine: Machine) -> None:
    """Write a tile: positions and vectors unrolled, so that the accumulators need no memory."""
    position, channel = sch.get_loops(final)[-2:]
    extent = int(sch.get(channel).extent)
    if extent % machine.lanes == 0:
        vectors, lanes = sch.split(channel, [None, machine.lanes])
        sch.vectorize(lanes)
        sch.unroll(vectors)
    sch.unroll(position)


def _plain(sch: Any, machine: Machine) -> None:
    """Functions without a contraction: inline what is element-wise, then each remaining block by itself."""
    root = sch.get_sblock("root")
    outputs = {sch.get(b).name_hint for b in sch.get_output_blocks(root)}
    for block in sch.get_child_blocks(root):
        if sch.get(block).name_hint not in outputs and not sch.get(block).name_hint.startswith("pad"):
            with contextlib.suppress(_schedule_error()):
                sch.compute_inline(block)
    for block in sch.get_child_blocks(root):
        kinds = {int(v.iter_type) for v in sch.get(block).iter_vars}
        if kinds == {0}:
            _injective(sch, block, machine)
        elif kinds == {0, 2}:
            _reduction(sch, block, machine)


def _schedule_error() -> type[Exception]:
    from tvm.s_tir.schedule import ScheduleError

    return ScheduleError  # type: ignore[no-any-return]


def _injective(sch: Any, block: Any, machine: Machine) -> None:
    """Vectorize the innermost axis if it is whole vectors, share the outer ones between cores."""
    loops = sch.get_loops(block)
    if not loops:
        return
    *outer, inner = loops
    size = math.prod(int(sch.get(loop).extent) for loop in loops)
    if int(sch.get(inner).extent) % machine.lanes == 0:
        far, near = sch.split(inner, [None, machine.lanes])
        sch.vectorize(near)
        outer.append(far)
    _parallel(sch, outer, size, machine)


def _reduction(sch: Any, block: Any, machine: Machine) -> None:
    """Reduce whole vectors at once where the innermost axis that stays is one, as in pooling over NHWC."""
    loops = sch.get_loops(block)
    kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
    space = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    size = math.prod(int(sch.get(loop).extent) for loop in loops)
    if not space:
        return
    *outer, inner = space
    if int(sch.get(inner).extent) % machine.lanes == 0:
        far, near = sch.split(inner, [None, machine.lanes])
        outer.append(far)
        sch.reorder(*outer, *reduction, near)
        sch.vectorize(near)
    sch.decompose_reduction(block, reduction[0])
    _parallel(sch, outer, size, machine)


def _parallel(sch: Any, outer: list[Any], size: int, machine: Machine) -> None:
    if machine.cores > 1 and outer and size >= WORTH_A_THREAD:
        sch.parallel(sch.fuse(*outer))
