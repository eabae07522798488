"""Operators that run over whole axes: a letter that only the input has is reduced over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import SMALL, WIDER, overloads
from msc_core.ops.comparison import truth
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, promote, scalar
from msc_core.ops.op import Bound, Call, DType, Emit, Importer, Op, Source, call

Axes = tuple[int, ...]


def reduced_axes(b: Bound) -> str:
    """`"a0 a1 a2 -> a0 1"` and the like, for a reduction over `axes`, by default all of them."""
    rank = len(b.input(0).shape)
    if not rank:
        return "... -> ..."
    axes = all_axes(b.input(0), b["axes"])
    kept = [f"a{i}" if i not in axes else "1" for i in range(rank) if i not in axes or b["keepdims"]]
    return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(kept)}"


def all_axes(x: Tensor, dim: Any = None) -> Axes:
    """The axes that torch means by `dim`: all of them where there is none."""
    rank = len(x.shape)
    if dim is None or dim == () or dim == []:
        return tuple(range(rank))
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(axis % rank for axis in axes) if rank else ()


def reduction(
    name: str,
    torch: Emit,
    onnx: str | Emit,
    relax: str | Emit,
    aten: dict[str, Importer],
    *,
    lacks: tuple[str, ...] = SMALL,
    **others: Any,
) -> Op:
    """A row for a reduction over `axes`; if there are none, it runs over all of them."""

    def to_onnx(b: Bound) -> Call:
        axes = np.asarray(b["axes"], np.int64)
        wanted = {"keepdims": int(b["keepdims"])}
        dtype = b.input(0).dtype
        if dtype not in lacks:
            return call(str(onnx), *b.x, axes, **wanted)
        found = call(str(onnx), call("Cast", *b.x, to=DType(WIDER[dtype])), axes, **wanted)
        return call("Cast", found, to=DType(dtype))

    def to_relax(b: Bound) -> Any:
        return call(str(relax), *b.x, axis=explicit(b), keepdims=b["keepdims"])

    return Op(
        name,
        axes=reduced_axes,
        aten=aten,
        torch=torch,
        onnx=to_onnx if isinstance(onnx, str) else onnx,
        relax=to_relax if isinstance(relax, str) else relax,
        **{"msc": relax if isinstance(relax, str) else "", "from_relax": reduced_from_relax(name),
           "attrs": {"axes": (), "keepdims": False}} | others,
    )  # fmt: skip


def explicit(b: Bound) -> Axes:
    """The axes of a node as they are given, or all of them."""
    return b["axes"] or tuple(range(len(b.input(0).shape)))


def plain(name: str) -> Emit:
    """A torch function of `dim` and `keepdim`."""
    return lambda b: call(name, *b.x, dim=explicit(b), keepdim=b["keepdims"])


def reduced_from_relax(name: str) -> dict[str, Importer]:
    """The importer of the Relax operator of that name."""

    def importer(n: Source) -> Any:
        x, given = n.tensor(0), n.attr("axis")
        if given is not None and not isinstance(given, int) and not len(given):
            return x
        return call(name, x, axes=all_axes(x, given), keepdims=bool(n.attr("keepdims")))

    return {name: importer}


def onnx_axes(n: Source) -> Axes | None:
    """The axes of an ONNX reduction, an attribute or an input; `None` where nothing is reduced."""
    given = n.attr("axes") if len(n.x) < 2 else n.constant(1)
    axes = tuple(int(axis) for axis in np.ravel(given if given is not None else ()))
    return None if not axes and n.attr("noop_with_empty_axes", 0) else all_axes(n.tensor(0), axes or None)


def from_onnx(reduce: Callable[[Any, Axes, bool], Any], before: Callable[[Any], Any] = lambda x: x) -> Importer:
    """The importer of an ONNX reduction: `reduce` of an operand (that `before` made), the axes and `keepdims`."""

    def importer(n: Source) -> Any:
        axes = onnx_axes(n)
        return before(n.tensor(0)) if axes is None else reduce(n.tensor(0), axes, bool(n.attr("keepdims", 1)))

    return importer


def reduced(name: str) -> Callable[[Any, Axes, bool], Any]:
    """A call of a row of this family."""
    return lambda x, axes, keepdims: call(name, x, axes=axes, keepdims=keepdims)


def accumulated(name: str) -> Callable[..., Call]:
    """`aten.sum` and `aten.prod`, of integers and booleans in int64."""

    def from_aten(self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Call:
        found = "int64" if kind(self.dtype) < 2 else self.dtype
        wanted = found if dtype is None else str(dtype).removeprefix("torch.")
        return call(name, cast(self, wanted), axes=all_axes(self, dim), keepdims=keepdim)

    return from_aten


def mean_from_aten(self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Call:
    """`aten.mean`, over all axes where `dim` is absent."""
    wanted = self.dtype if dtype is None else str(dtype).removeprefix("torch.")
    return call("mean", cast(self, wanted), axes=all_axes(self, dim), keepdims=keepdim)


def mean_from_onnx(x: Tensor, axes: Axes, keepdims: bool) -> Call:
    """`ReduceMean`, which rounds means of integers towards zero."""
    if kind(x.dtype) == 2:
        return call("mean", x, axes=axes, keepdims=keepdims)
    return call("trunc_divide", call("sum", x, axes=axes, keepdims=keepdims), scalar(count(x, axes), x.dtype))


def count(x: Tensor, axes: Axes) -> Any:
    """How many elements a reduction runs over: a number, or an expression."""
    return dims.mul(*(x.shape[axis] for axis in axes))


def accumulating(name: str) -> Emit:
    """`torch.sum`, which makes int64 of integers unless it is told otherwise."""

    def to_torch(b: Bound) -> Call:
        dtype = b.input(0).dtype
        typed = {} if kind(dtype) == 2 else {"dtype": DType(dtype)}
        return call(name, *b.x, dim=explicit(b), keepdim=b["keepdims"], **typed)

    return to_torch


def prod_to_torch(b: Bound) -> Any:
    """`torch.prod`, which takes one axis at a time."""
    x, dtype = b.input(0), b.input(0).dtype
    typed = {} if kind(dtype) == 2 else {"dtype": DType(dtype)}
    found: Any = x
    for axis in sorted((axis % len(x.shape) for axis in explicit(b)), reverse=True):
        found = call("torch.prod", found, axis, b["keepdims"], **typed)
    return found if b.input(0).shape else call("torch.clone", x)


def variance(b: Bound) -> Call:
    """The mean square of the distance from the mean, with the correction in the divisor."""
    (x,) = b.x
    assert x is not None
    axes = all_axes(x, b["axes"])
    number = count(x, axes)
    distance = call("subtract", x, call("mean", x, axes=axes, keepdims=True))
    total = call("sum", call("multiply", distance, distance), axes=axes, keepdims=b["keepdims"])
    divisor: Any
    if isinstance(number, int):
        divisor = scalar(max(number - b["correction"], 0.0), x.dtype)
    else:
        divisor = call("subtract", scalar(number, x.dtype), scalar(b["correction"], x.dtype))
        divisor = call("maximum", divisor, scalar(0, x.dtype))
    return call("divide", total, divisor)


def spread(name: str, torch: str, expand: Callable[[Bound], Any], relax: str) -> Op:
    """A row for a variance or a standard deviation; Relax has those without correction."""

    def from_aten(
        self: Tensor, dim: Any = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
    ) -> Call:
        amount = float(unbiased) if correction is None else float(correction)
        return call(name, self, axes=all_axes(self, dim), correction=amount, keepdims=keepdim)

    def from_relax(n: Source) -> Call:
        axes = all_axes(n.tensor(0), n.attr("axis"))
        return call(name, n.tensor(0), axes=axes, correction=0.0, keepdims=bool(n.attr("keepdims")))

    def to_torch(b: Bound) -> Call:
        return call(torch, *b.x, dim=explicit(b), correction=b["correction"], keepdim=b["keepdims"])

    kinds = ("default", "dim", "correction")
    return reduction(
        name, to_torch, derived(expand, "onnx"), derived(expand, "relax"),
        {f"{torch.removeprefix('torch.')}.{k}": from_aten for k in kinds}
        | {f"{torch.removeprefix('torch.')}_mean.{k}": with_mean(from_aten) for k in kinds},
        attrs={"axes": (), "keepdims": False, "correction": 1.0}, from_relax={relax: from_relax}, msc=relax,
    )  # fmt: skip


def with_mean(from_aten: Importer) -> Importer:
    """`var_mean` and `std_mean`."""

    def both(self: Tensor, dim: Any = None, keepdim: bool = False, **others: Any) -> Any:
        return from_aten(self, dim, keepdim=keepdim, **others), mean_from_aten(self, dim, keepdim)

    return both


def logsumexp(b: Bound) -> Call:
    """With the largest element taken out first, unless that is infinite."""
    (x,) = b.x
    assert x is not None
    axes = all_axes(x, b["axes"])
    zero = scalar(0, x.dtype)
    largest = call("max", x, axes=axes, keepdims=True)
    largest = call("where", call("isfinite", largest), largest, zero)
    total = call("sum", call("exp", call("subtract", x, largest)), axes=axes, keepdims=b["keepdims"])
    shift = largest if b["keepdims"] else call("sum", largest, axes=axes, keepdims=False)
    return call("add", call("log", total), shift)


def norm(b: Bound) -> Call:
    """The root of the sum of powers; its limits count, add up or take the extreme."""
    (x,) = b.x
    assert x is not None
    axes, order = {"axes": all_axes(x, b["axes"]), "keepdims": b["keepdims"]}, b["order"]
    size = call("abs", x)
    if math.isinf(order):
        return call("max" if order > 0 else "min", size, **axes)
    if order == 0:
        return call("sum", call("cast", call("not_equal", x, scalar(0, x.dtype)), dtype=x.dtype), **axes)
    if order == 1:
        return call("sum", size, **axes)
    if order == 2:
        return call("sqrt", call("sum", call("multiply", x, x), **axes))
    total = call("sum", call("power", size, scalar(order, x.dtype)), **axes)
    return call("power", total, scalar(1 / order, x.dtype))


def norm_from_aten(
    self: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, p: Any = None
) -> Call:
    """`linalg.vector_norm` and `norm`, whose order has different names."""
    order = ord if p is None else p
    wanted = promote(self, floating=True) if dtype is None else str(dtype).removeprefix("torch.")
    return call("norm", cast(self, wanted), order=float(order), axes=all_axes(self, dim), keepdims=keepdim)


def old_norm(self: Tensor, p: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Call:
    """`aten.norm`, of order 2 where it is not said."""
    return norm_from_aten(self, 2 if p is None else p, dim, keepdim, dtype)


def matrix_free_norm(self: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Call:
    """`linalg.norm` of vectors."""
    if ord is not None and len(all_axes(self, dim)) != 1:
        raise UnsupportedOperator(f"a norm of matrices (ord={ord!r})")
    return norm_from_aten(self, 2 if ord is None else ord, dim, keepdim, dtype)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Call:
    """`_weight_norm`: a weight as its direction times its length, which is that over the other axes."""
    axes = tuple(axis for axis in range(len(v.shape)) if dim == -1 or axis != dim % len(v.shape))
    return call("multiply", v, call("divide", g, call("norm", v, order=2.0, axes=axes, keepdims=dim != -1)))


def norm_to_onnx(b: Bound) -> Any:
    """`ReduceL1` or `ReduceL2`."""
    op = {1: "ReduceL1", 2: "ReduceL2"}.get(b["order"])
    if op is None:
        return derived(norm, "onnx")(b)
    return call(op, *b.x, np.asarray(b["axes"], np.int64), keepdims=int(b["keepdims"]))


def norm_from_onnx(order: float) -> Importer:
    """`ReduceL1` and `ReduceL2`, also of integers."""

    def reduce(x: Tensor, axes: Axes, keepdims: bool) -> Any:
        if kind(x.dtype) < 2 and order == 1:
            return call("sum", call("abs", x), axes=axes, keepdims=keepdims)
        wide = x.dtype if kind(x.dtype) == 2 else "float64"
        found = call("norm", cast(x, wide), order=float(order), axes=axes, keepdims=keepdims)
        return cast(found, x.dtype, wide)

    return from_onnx(reduce, lambda x: call("abs", x))


def count_nonzero(self: Tensor, dim: Any = None) -> Call:
    """`count_nonzero`."""
    return call("sum", call("cast", truth(self), dtype="int64"), axes=all_axes(self, dim))


REDUCTION = [
    reduction(
        "sum", accumulating("torch.sum"), "ReduceSum", "sum",
        overloads("sum.default sum.dim_IntList", accumulated("sum"))
        | overloads("count_nonzero.default count_nonzero.dim_IntList", count_nonzero),
        from_onnx={
            "ReduceSum": from_onnx(reduced("sum")),
            "ReduceLogSum": from_onnx(lambda *x: call("log", reduced("sum")(*x)), lambda x: call("log", x)),
            "ReduceSumSquare": from_onnx(
                lambda x, *how: reduced("sum")(call("multiply", x, x), *how), lambda x: call("multiply", x, x)
            ),
        },
    ),
    reduction(
        "mean", plain("torch.mean"), "ReduceMean", "mean", overloads("mean.default mean.dim", mean_from_aten),
        from_onnx={"ReduceMean": from_onnx(mean_from_onnx)},
    ),
    reduction(
        "prod", prod_to_torch, "ReduceProd", "prod", overloads("prod.default prod.dim_int", accumulated("prod")),
        from_onnx={"ReduceProd": from_onnx(reduced("prod"))},
    ),
    spread("variance", "torch.var", variance, "variance"),
    spread("std", "torch.std", lambda b: call("sqrt", variance(b)), "std"),
    reduction(
        "logsumexp", plain("torch.logsumexp"), "ReduceLogSumExp", derived(logsumexp, "relax"),
        {"logsumexp.default": lambda self, dim, keepdim=False: call(
            "logsumexp", cast(self, promote(self, floating=True)), axes=all_axes(self, dim), keepdims=keepdim)},
        from_onnx={"ReduceLogSumExp": from_onnx(reduced("logsumexp"))}, from_relax={},
    ),
    reduction(
        "norm", lambda b: call("torch.linalg.vector_norm", *b.x, b["order"], dim=explicit(b), keepdim=b["keepdims"]),
        norm_to_onnx, derived(norm, "relax"),
        overloads("linalg_vector_norm.default", norm_from_aten)
        | overloads("norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype", old_norm)
        | overloads("linalg_norm.default", matrix_free_norm)
        | overloads("_weight_norm.default", weight_norm),
        attrs={"axes": (), "keepdims": False, "order": 2.0},
        from_onnx={"ReduceL1": norm_from_onnx(1), "ReduceL2": norm_from_onnx(2)}, from_relax={},
    ),
]  # fmt: skip
