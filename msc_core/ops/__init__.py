"""THE op table: one row per operator, split by family; adding an operator means adding a row."""

from __future__ import annotations

from collections.abc import Mapping

from msc_core.errors import UnsupportedOperator, nearest
from msc_core.ir import Node, Tensor
from msc_core.ops.contraction import CONTRACTION
from msc_core.ops.elementwise import ELEMENTWISE
from msc_core.ops.movement import MOVEMENT
from msc_core.ops.norm import NORM
from msc_core.ops.op import TRAINING, Bound, Call, Op, call
from msc_core.ops.pool import POOL
from msc_core.ops.reduction import REDUCTION

__all__ = ["OPS", "TRAINING", "Bound", "Call", "Op", "bind", "call"]

OPS: Mapping[str, Op] = {
    op.name: op for op in (*CONTRACTION, *NORM, *ELEMENTWISE, *POOL, *REDUCTION, *MOVEMENT)
}  # fmt: skip


def bind(node: Node, tensors: Mapping[str, Tensor]) -> Bound:
    """The node with its row and tensors. Raises `UnsupportedOperator` if the table has no such row."""
    if node.op not in OPS:
        raise UnsupportedOperator(f"node {node.name!r}: no operator {node.op!r} in the op table{nearest(node.op, OPS)}")
    return OPS[node.op].bind(node, tensors)
