"""THE op table: one row per operator, split by family; adding an operator means adding a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msc_core.errors import UnsupportedOperator, nearest
from msc_core.ir import Node, Tensor
from msc_core.ops.activation import ACTIVATION
from msc_core.ops.adaptive_pool import ADAPTIVE_POOL
from msc_core.ops.arithmetic import ARITHMETIC
from msc_core.ops.attention import ATTENTION
from msc_core.ops.comparison import COMPARISON
from msc_core.ops.contraction import CONTRACTION
from msc_core.ops.convolution import CONVOLUTION
from msc_core.ops.creation import CREATION
from msc_core.ops.elementwise import ELEMENTWISE
from msc_core.ops.extremes import EXTREMES
from msc_core.ops.image import IMAGE
from msc_core.ops.indexing import INDEXING
from msc_core.ops.layer_norm import LAYER_NORM
from msc_core.ops.movement import MOVEMENT
from msc_core.ops.norm import NORM
from msc_core.ops.op import (
    DEVICE,
    TRAINING,
    Bound,
    Call,
    DType,
    Marker,
    Op,
    Refuse,
    Shape,
    Size,
    Source,
    call,
    describe,
    size_tensor,
    sizes,
)  # fmt: skip
from msc_core.ops.ordering import ORDERING
from msc_core.ops.pool import POOL
from msc_core.ops.quantization import QUANTIZATION
from msc_core.ops.recurrent import RECURRENT
from msc_core.ops.reduction import REDUCTION
from msc_core.ops.resize import RESIZE
from msc_core.ops.sampling import SAMPLING
from msc_core.ops.scattering import SCATTERING
from msc_core.ops.slicing import SLICING
from msc_core.ops.softmax import SOFTMAX
from msc_core.ops.unary import UNARY

__all__ = [
    "DEVICE",
    "FAMILIES",
    "OPS",
    "TRAINING",
    "Bound",
    "Call",
    "DType",
    "Marker",
    "Op",
    "Refuse",
    "Shape",
    "Size",
    "Source",
    "bind",
    "call",
    "describe",
    "size_tensor",
    "sizes",
]

FAMILIES: Mapping[str, Sequence[Op]] = {
    "activation": ACTIVATION,
    "adaptive_pool": ADAPTIVE_POOL,
    "arithmetic": ARITHMETIC,
    "attention": ATTENTION,
    "comparison": COMPARISON,
    "contraction": CONTRACTION,
    "convolution": CONVOLUTION,
    "creation": CREATION,
    "elementwise": ELEMENTWISE,
    "extremes": EXTREMES,
    "image": IMAGE,
    "indexing": INDEXING,
    "layer_norm": LAYER_NORM,
    "movement": MOVEMENT,
    "norm": NORM,
    "ordering": ORDERING,
    "pool": POOL,
    "quantization": QUANTIZATION,
    "recurrent": RECURRENT,
    "reduction": REDUCTION,
    "resize": RESIZE,
    "sampling": SAMPLING,
    "scattering": SCATTERING,
    "slicing": SLICING,
    "softmax": SOFTMAX,
    "unary": UNARY,
}
OPS: Mapping[str, Op] = {op.name: op for family in FAMILIES.values() for op in family}


def bind(node: Node, tensors: Mapping[str, Tensor]) -> Bound:
    """The node with its row and tensors. Raises `UnsupportedOperator` if the table has no such row."""
    if node.op not in OPS:
        raise UnsupportedOperator(f"node {node.name!r}: no operator {node.op!r} in the op table{nearest(node.op, OPS)}")
    return OPS[node.op].bind(node, tensors)
