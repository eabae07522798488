"""Operators that contract axes of two or more tensors: linear layers, matrix products, Einstein sums."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.dtypes import cast, scalar
from msc_core.ops.op import Bound, Call, Op, Source, call
from msc_core.ops.signature import Sizes
from msc_core.ops.spectral import dft_from_onnx, stft_from_onnx
from msc_core.ops.window import product


def linear_macs(b: Bound, sizes: Sizes) -> int:
    """Output positions times input features."""
    return product(b.out[0].shape) * product((sizes["i"],))


def linear_to_onnx(b: Bound) -> Call:
    """`Gemm` for matrices, otherwise `MatMul` with the transposed weight."""
    x, weight, bias = b.input(0), b.input(1), b.x[2]
    if len(x.shape) == 2:
        return call("Gemm", x, weight, bias, transB=1)
    out = call("MatMul", x, call("Transpose", weight, perm=(1, 0)))
    return out if bias is None else call("Add", out, bias)


def linear_to_relax(b: Bound) -> Call:
    """`matmul` with the transposed weight, and an `add`."""
    out = call("matmul", b.x[0], call("permute_dims", b.x[1]))
    return out if b.x[2] is None else call("add", out, b.x[2])


def matmul_axes(b: Bound) -> str:
    """`"... m k, ... k n -> ... m n"`, without `m` or `n` where an operand is a vector."""
    left, right = (len(b.input(i).shape) for i in (0, 1))
    a = "k" if left == 1 else "... m k"
    c = "k" if right == 1 else "... k n"
    batch = "" if left == right == 1 else "... "
    return f"{a}, {c} -> {batch}{'' if left == 1 else 'm '}{'' if right == 1 else 'n'}"


def contracted_macs(b: Bound, sizes: Sizes) -> int:
    """The product of all letters: a multiply-accumulate for every combination, as if contracted at once."""
    return product(tuple(sizes.values()))


def added(term: Any, out: Call, dtype: str, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * term + alpha * out`; a `term` times zero is not read."""
    if alpha != 1:
        out = call("multiply", out, scalar(alpha, dtype))
    if term is None or beta == 0:
        return out
    if beta != 1:
        term = call("multiply", term, scalar(beta, dtype))
    return call("add", out, term)


def add_product_from_aten(self: Tensor, *, beta: Any = 1, alpha: Any = 1, **factors: Tensor) -> Any:
    """`addmm`, `addmv` and `baddbmm`, whose factors have different names in the schemas."""
    left, right = factors.values()
    return added(self, call("matmul", left, right), self.dtype, beta, alpha)


def addbmm_from_aten(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`addbmm`, which sums over the batch."""
    return added(self, call("einsum", batch1, batch2, equation="bnm,bmp->np"), self.dtype, beta, alpha)


def addr_from_aten(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`addr`, which adds an outer product."""
    return added(self, call("einsum", vec1, vec2, equation="i,j->ij"), self.dtype, beta, alpha)


def inner_from_aten(self: Tensor, other: Tensor) -> Call:
    """`inner`, which contracts the last axes."""
    if not self.shape or not other.shape:
        return call("multiply", self, other)
    left, right = string.ascii_lowercase[: len(self.shape) - 1], string.ascii_uppercase[: len(other.shape) - 1]
    return call("einsum", self, other, equation=f"{left}z,{right}z->{left}{right}")


def tensordot_from_aten(self: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]) -> Call:
    """`tensordot`."""
    left = list(string.ascii_lowercase[: len(self.shape)])
    right = list(string.ascii_uppercase[: len(other.shape)])
    for i, j in zip(dims_self, dims_other, strict=True):
        right[j] = left[i]
    out = [x for x in left if x not in right] + [x for x in right if x not in left]
    return call("einsum", self, other, equation=f"{''.join(left)},{''.join(right)}->{''.join(out)}")


def bilinear_from_aten(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`bilinear`."""
    out = call("einsum", input1, weight, input2, equation="...i,oij,...j->...o")
    return added(bias, out, input1.dtype)


def chain_from_aten(**given: Sequence[Tensor]) -> Any:
    """`chain_matmul` and `linalg.multi_dot`, from left to right."""
    (factors,) = given.values()
    out: Any = factors[0]
    for factor in factors[1:]:
        out = call("matmul", out, factor)
    return out


def gemm_from_onnx(n: Source) -> Any:
    """`Gemm`: a `linear` layer where it is one, otherwise a `matmul` and what is added to it."""
    a, b, c = n.tensor(0), n.tensor(1), n.get(2)
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    row = c is None or c.shape == (b.shape[0],)
    if n.attr("transB", 0) and not n.attr("transA", 0) and alpha == 1 and (beta == 1 or c is None) and row:
        return call("linear", a, b, c)
    left = call("permute_dims", a, axes=(1, 0)) if n.attr("transA", 0) else a
    right = call("permute_dims", b, axes=(1, 0)) if n.attr("transB", 0) else b
    return added(c, call("matmul", left, right), a.dtype, _scale(beta, a.dtype), _scale(alpha, a.dtype))


def _scale(value: float, dtype: str) -> float | int:
    return int(value) if dtype.startswith(("int", "uint")) and value == int(value) else value


def matmul_integer_from_onnx(n: Source) -> Call:
    """`MatMulInteger`: operands minus their zero points, multiplied as int32."""
    operands = []
    for index, axis in ((0, -2), (1, -1)):
        x = call("cast", n.tensor(index), dtype="int32")
        zero = n.get(index + 2)
        if zero is not None:
            point = cast(zero, "int32")
            if len(zero.shape) == 1 and zero.shape != (1,) and axis == -2:
                point = call("reshape", point, shape=(*zero.shape, 1))
            x = call("subtract", x, point)
        operands.append(x)
    return call("matmul", *operands)


def matmul_from_relax(n: Source) -> Call:
    """`matmul`, whose `out_dtype` widens the operands."""
    wide = n.attr("out_dtype", "")
    operands = [n.tensor(i) if wide in ("", "void") else cast(n.tensor(i), wide) for i in (0, 1)]
    return call("matmul", *operands)


def explicit(equation: str, ranks: Sequence[int], where: str) -> str:
    """An Einstein sum's equation in canonical form: no spaces, the output written out.

    >>> explicit("b i j, b j k", (3, 3), "einsum"), explicit("...ij -> ...ji", (3,), "einsum")
    ('bij,bjk->ik', '...ij->...ji')
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise UnsupportedOperator(f"{where}: {equation!r} for {len(ranks)} operands")
    if not arrow:
        letters = sorted(set(left) - set(".,"))
        right = ("..." if "..." in left else "") + "".join(x for x in letters if left.count(x) == 1)
    return f"{left}->{right}"


def einsum_axes(b: Bound) -> str:
    """The equation is a signature already."""

    def spaced(term: str) -> str:
        return " ".join(term.replace("...", "~")).replace("~", "...")

    left, right = b["equation"].split("->")
    return f"{', '.join(map(spaced, left.split(',')))} -> {spaced(right)}"


def spelled(b: Bound) -> str:
    """The equation with letters for the ellipsis, which not every target knows or broadcasts."""
    left, right = b["equation"].split("->")
    terms = left.split(",")
    free = [x for x in string.ascii_letters if x not in b["equation"]]
    counts = [
        len(b.input(i).shape) - len(term.replace("...", "")) if "..." in term else 0 for i, term in enumerate(terms)
    ]
    shared = "".join(free[: max(counts, default=0)])
    named = [term.replace("...", shared[len(shared) - n :]) for term, n in zip(terms, counts, strict=True)]
    return f"{','.join(named)}->{right.replace('...', shared)}"


def _einsum(operands: Sequence[Any], equation: str, where: str) -> Call:
    """The sum; an axis of size one that stands under a letter of a larger size is dropped, as it would be broadcast."""
    left, right = explicit(equation, [len(t.shape) for t in operands], where).split("->")
    terms = left.split(",")
    sizes = [_letter_sizes(term, t.shape) for term, t in zip(terms, operands, strict=True)]
    larger = {letter for found in sizes for letter, size in found.items() if size != 1}
    kept: list[Any] = []
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        drop = {letter for letter, size in sizes[i].items() if size == 1 and letter in larger}
        if drop:
            front, dots, back = term.partition("...")
            letters = [*front, *[""] * (len(x.shape) - len(front) - len(back)), *back]
            shape = tuple(size for letter, size in zip(letters, x.shape, strict=True) if letter not in drop)
            terms[i] = "".join(c for c in front if c not in drop) + dots + "".join(c for c in back if c not in drop)
            x = call("reshape", x, shape=shape)
        kept.append(x)
    return call("einsum", *kept, equation=f"{','.join(terms)}->{right}")


def _letter_sizes(term: str, shape: Sequence[Any]) -> dict[str, Any]:
    front, _, back = term.partition("...")
    return dict(zip(front, shape, strict=False)) | dict(zip(back, shape[len(shape) - len(back) :], strict=True))


CONTRACTION = [
    Op(
        "linear",
        axes="... i, o i, o? -> ... o",
        macs=linear_macs,
        aten={"linear.default": lambda input, weight, bias=None: call("linear", input, weight, bias)},
        from_onnx={"Gemm": gemm_from_onnx},
        torch=lambda b: call("F.linear", *b.x),
        onnx=linear_to_onnx,
        relax=linear_to_relax,
        msc="msc.linear",
    ),
    Op(
        "matmul",
        axes=matmul_axes,
        macs=contracted_macs,
        aten={
            "matmul.default": lambda self, other: call("matmul", self, other),
            "mm.default": lambda self, mat2: call("matmul", self, mat2),
            "bmm.default": lambda self, mat2: call("matmul", self, mat2),
            "mv.default": lambda self, vec: call("matmul", self, vec),
            "dot.default": lambda self, tensor: call("matmul", self, tensor),
            "vdot.default": lambda self, other: call("matmul", self, other),
            "linalg_matmul.default": lambda self, other: call("matmul", self, other),
            "chain_matmul.default": chain_from_aten,
            "linalg_multi_dot.default": chain_from_aten,
            **dict.fromkeys(("addmm.default", "addmv.default", "baddbmm.default"), add_product_from_aten),
        },
        from_onnx={
            "MatMul": lambda n: call("matmul", n.tensor(0), n.tensor(1)),
            "MatMulInteger": matmul_integer_from_onnx,
            "DFT": dft_from_onnx,
            "STFT": stft_from_onnx,
        },
        from_relax={"matmul": matmul_from_relax},
        torch=lambda b: call("torch.matmul", *b.x),
        onnx=lambda b: call("MatMul", *b.x),
        relax=lambda b: call("matmul", *b.x),
        msc="matmul",
    ),
    Op(
        "einsum",
        axes=einsum_axes,
        attrs={"equation": ""},
        macs=contracted_macs,
        aten={
            "einsum.default": lambda equation, tensors, path=None: _einsum(tensors, equation, "einsum"),
            "addbmm.default": addbmm_from_aten,
            "addr.default": addr_from_aten,
            "outer.default": lambda self, vec2: call("einsum", self, vec2, equation="i,j->ij"),
            "inner.default": inner_from_aten,
            "tensordot.default": tensordot_from_aten,
            "bilinear.default": bilinear_from_aten,
        },
        from_onnx={"Einsum": lambda n: _einsum(n.x, n.attr("equation"), n.op)},
        from_relax={"einsum": lambda n: _einsum(_flat(n.x), n.attr("subscripts"), n.op)},
        torch=lambda b: call("torch.einsum", b["equation"], *b.x),
        onnx=lambda b: call("Einsum", *b.x, equation=spelled(b)),
        relax=lambda b: call("einsum", tuple(b.x), spelled(b)),
        msc="einsum",
    ),
]


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """Relax's operands come as one tuple."""
    return [t for arg in arguments for t in (arg if isinstance(arg, (tuple, list)) else (arg,))]
