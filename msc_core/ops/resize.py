"""Resizing by interpolation: every mode of ONNX's `Resize`, of which torch's are special cases.

Interpolation is separable: along each axis it is a product with a matrix (or a choice of positions, for `nearest`) that
depends on the sizes alone. Targets that lack a mode get those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array, Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind
from msc_core.ops.op import Bound, Call, Op, Source, call, size_tensor, sizes
from msc_core.ops.separable import along
from msc_core.ops.signature import Sizes

DEFAULTS: dict[str, Any] = {
    "size": (),  # of the last axes
    "scales": (),  # where the factors are not the quotients of the sizes
    "mode": "nearest",  # or "linear", "cubic"
    "coordinates": "half_pixel",  # ONNX's `coordinate_transformation_mode`
    "rounding": "round_prefer_floor",  # ONNX's `nearest_mode`
    "cubic": -0.75,
    "exclude_outside": False,
    "antialias": False,
}
ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def changed(b: Bound) -> list[int]:
    """The axes that are resized; one that keeps its size and has no factor of its own is not."""
    rank, count = len(b.input(0).shape), len(b["size"])
    scales = b["scales"] or (1.0,) * count
    axes = zip(range(rank - count, rank), b["size"], scales, strict=True)
    return [axis for axis, size, scale in axes if size != b.input(0).shape[axis] or scale != 1]


def resize_axes(b: Bound) -> str:
    """Axes that are resized come out as new ones."""
    rank, new = len(b.input(0).shape), changed(b)
    left = " ".join(f"a{i}" for i in range(rank))
    return f"{left} -> {' '.join(f'R{i}' if i in new else f'a{i}' for i in range(rank))}"


def resize_size(b: Bound, known: Sizes) -> Sizes:
    """The sizes of the axes that are resized."""
    first = len(b.input(0).shape) - len(b["size"])
    return {f"R{i}": b["size"][i - first] for i in changed(b)}


# Along one axis


def positions(b: Bound, axis: int) -> tuple[Array, float, int]:
    """Where each output element lies in the input, the factor, and the input's size."""
    count, index = b.input(0).shape[axis], axis - len(b.input(0).shape)
    size = b["size"][index]
    if isinstance(count, str) or isinstance(size, str):
        raise UnsupportedOperator(f"{b}: resizing {count} to {size} in mode {b['mode']!r}, {b['coordinates']!r}")
    factor = b["scales"][index] if b["scales"] else size / count
    exact = size if not b["scales"] else factor * count
    i, kind_ = np.arange(size, dtype=np.float64), b["coordinates"]
    if kind_ == "align_corners":
        at = i * (count - 1) / (exact - 1) if exact != 1 else 0 * i
    elif kind_ == "asymmetric":
        at = i * count / size if not b["scales"] else i / factor
    elif kind_ == "pytorch_half_pixel" and size <= 1:
        at = 0 * i
    elif kind_ == "tf_half_pixel_for_nn":
        at = (i + 0.5) / factor
    else:
        at = (i + 0.5) * count / size - 0.5 if not b["scales"] else (i + 0.5) / factor - 0.5
        if kind_ == "half_pixel_symmetric":
            at = at + count / 2 * (1 - size / exact)
    return at, factor, count


def chosen(b: Bound, axis: int) -> Array:
    """The input position of each output element, for `nearest`."""
    at, _, count = positions(b, axis)
    return np.clip(ROUNDINGS[b["rounding"]](at), 0, count - 1).astype(np.int64)


def matrix(b: Bound, axis: int) -> Array:
    """What each input element weighs in each output element: [output, input]."""
    at, factor, count = positions(b, axis)
    reach = {"linear": 1, "cubic": 2}[b["mode"]]
    squeeze = min(factor, 1.0) if b["antialias"] else 1.0
    width = math.ceil(reach / squeeze)
    base = np.floor(at).astype(np.int64)
    neighbors = base[:, None] + np.arange(1 - width, width + 1)
    distance = np.abs(at[:, None] - neighbors) * squeeze
    weights = np.clip(1 - distance, 0, None) if b["mode"] == "linear" else cubic(distance, b["cubic"])
    if b["exclude_outside"]:
        weights = np.where((neighbors < 0) | (neighbors >= count), 0, weights)
    if b["exclude_outside"] or b["antialias"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    result = np.zeros((len(at), count))
    np.add.at(result, (np.arange(len(at))[:, None], np.clip(neighbors, 0, count - 1)), weights)
    return result


def cubic(x: Array, a: float) -> Array:
    """Keys' cubic convolution of distances.

    >>> cubic(np.array([0.0, 1.0, 1.5, 2.0]), -0.75).tolist()
    [1.0, 0.0, -0.09375, 0.0]
    """
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resize_steps(b: Bound) -> Any:
    """Axis by axis: a choice of positions or a product with a matrix, in float32 at least."""
    x: Any = b.input(0)
    rank, dtype = len(x.shape), x.dtype
    if b["mode"] == "nearest":
        for axis in changed(b):
            x = call("take", x, chosen(b, axis), axis=axis)
        return x
    if kind(dtype) < 2:
        raise UnsupportedOperator(f"{b}: interpolation of {dtype}")
    wide = "float64" if dtype == "float64" else "float32"
    x = cast(x, wide)
    for axis in changed(b):
        weights = matrix(b, axis).astype(wide)
        x = along(x, rank, axis, weights)
    return cast(x, dtype, wide)


# Targets


def spatial(b: Bound) -> bool:
    """Whether all axes but batch and channels are meant, at most three."""
    return len(b.input(0).shape) - len(b["size"]) == 2 and len(b["size"]) <= 3


def scalable(b: Bound) -> bool:
    """Whether factors alone, rounded down, give the sizes, and the positions that we mean."""
    old = b.input(0).shape[2:]
    fits = all(
        isinstance(d, str) or math.floor(d * s) == size for d, s, size in zip(old, b["scales"], b["size"], strict=True)
    )
    return fits and b["coordinates"] != "align_corners"


def torch_mode(b: Bound) -> dict[str, Any] | None:
    """What `F.interpolate` calls the mode, `None` if it has none like it."""
    rank, mode, coordinates = len(b["size"]), b["mode"], b["coordinates"]
    if not spatial(b) or (kind(b.input(0).dtype) < 2 and mode != "nearest"):
        return None
    if mode == "nearest":
        known = {("asymmetric", "floor"): "nearest", ("half_pixel", "round_prefer_ceil"): "nearest-exact"}
        name = known.get((coordinates, b["rounding"]))
        return {"mode": name} if name and kind(b.input(0).dtype) == 2 else None
    if coordinates not in ("half_pixel", "align_corners") or (
        mode == "cubic" and (b["cubic"] != (-0.5 if b["antialias"] else -0.75) or rank != 2)
    ):
        return None
    if b["exclude_outside"] != b["antialias"] or (b["antialias"] and rank != 2):
        return None
    names = {"linear": ("linear", "bilinear", "trilinear")[rank - 1], "cubic": "bicubic"}
    extra = {"antialias": True} if b["antialias"] else {}
    return {"mode": names[mode], "align_corners": coordinates == "align_corners"} | extra


def resize_to_torch(b: Bound) -> Any:
    """`F.interpolate`."""
    known = torch_mode(b)
    if known is None or b.input(0).dtype in ("float16", "bfloat16"):
        return derived(resize_steps, "torch")(b)
    if b["scales"]:
        if not scalable(b):
            return derived(resize_steps, "torch")(b)
        return call("F.interpolate", *b.x, scale_factor=tuple(b["scales"]), **known)
    return call("F.interpolate", *b.x, size=sizes(b["size"]), **known)


def resize_to_onnx(b: Bound) -> Any:
    """`Resize`, by sizes or by factors."""
    if b.input(0).dtype not in ("float32", "uint8", "int8", "int32") or not spatial(b):
        return derived(resize_steps, "onnx")(b)
    if (b["scales"] and not scalable(b)) or (b["antialias"] and not b["exclude_outside"]):
        return derived(resize_steps, "onnx")(b)
    if b["mode"] == "cubic" and len(b["size"]) != 2:
        return derived(resize_steps, "onnx")(b)
    if b["mode"] == "nearest" and b["coordinates"] == "tf_half_pixel_for_nn":
        return derived(resize_steps, "onnx")(b)
    if b["mode"] != "nearest" and (kind(b.input(0).dtype) < 2 or b["coordinates"] == "half_pixel_symmetric"):
        return derived(resize_steps, "onnx")(b)
    own: dict[str, Any] = {"mode": b["mode"], "coordinate_transformation_mode": b["coordinates"]}
    if b["mode"] == "nearest":
        own["nearest_mode"] = b["rounding"]
    if b["mode"] == "cubic":
        own["cubic_coeff_a"] = b["cubic"]
    own |= {key: int(b[key]) for key in ("exclude_outside", "antialias") if b[key]}
    if b["scales"]:
        return call("Resize", *b.x, None, np.asarray([1, 1, *b["scales"]], np.float32), **own)
    return call("Resize", *b.x, None, None, size_tensor(b.out[0].shape), **own)


def resize_to_relax(b: Bound) -> Any:
    """`image.resize2d` for the two modes that detectors use most on images of any size, otherwise the steps."""
    symbolic = any(isinstance(d, str) for d in (*b.input(0).shape[2:], *b["size"]))
    if symbolic and spatial(b) and len(b["size"]) == 2 and not b["scales"] and not b["antialias"]:
        if b["mode"] == "nearest" and (b["coordinates"], b["rounding"]) == ("asymmetric", "floor"):
            return _resize2d(b, "nearest_neighbor", "asymmetric", "floor")
        if b["mode"] == "linear" and b["coordinates"] == "half_pixel":
            return _resize2d(b, "linear", b["coordinates"], "")
    return derived(resize_steps, "relax")(b)


def _resize2d(b: Bound, method: str, coordinates: str, rounding: str) -> Call:
    return call(
        "image.resize2d", *b.x, sizes(b["size"]), method=method, coordinate_transformation_mode=coordinates,
        rounding_method=rounding,
    )  # fmt: skip


# Import


def resized(x: Tensor, size: Sequence[Dim], scales: Sequence[float] = (), **attrs: Any) -> Any:
    """A resize of the last axes; factors that are the quotients of the sizes are left out."""
    old = x.shape[len(x.shape) - len(size) :]
    plain = all(dims.mul(a, int(s)) == b if s == int(s) else False for a, s, b in zip(old, scales, size, strict=False))
    known = not any(isinstance(d, str) for d in (*old, *size))
    if known and not plain:
        plain = all(math.isclose(int(a) * s, int(b), rel_tol=1e-7) for a, s, b in zip(old, scales, size, strict=False))
    attrs = {key: value for key, value in attrs.items() if value != DEFAULTS[key]}
    found = call("resize", x, size=tuple(size), scales=() if plain else tuple(map(float, scales)), **attrs)
    return x if tuple(size) == tuple(old) and (plain or all(s == 1 for s in scales)) else found


def times(size: Dim, scale: float) -> Dim:
    """A size times a factor, rounded down; a symbolic one times a fraction of whole numbers."""
    if not isinstance(size, str):
        return math.floor(size * scale + 1e-9 * (scale == int(scale)))
    top, bottom = float(scale).as_integer_ratio()
    if bottom > 64:
        raise UnsupportedOperator(f"a resize of {size} by the factor {scale}")
    return dims.floordiv(dims.mul(size, top), bottom)


def upsample(mode: str, rank: int, **attrs: Any) -> dict[str, Callable[..., Any]]:
    """The importers of one of torch's `upsample` operators, in both of its signatures."""
    corners = mode != "nearest"

    def import_(x: Tensor, output_size: Any, align: bool, factors: Sequence[float | None] | None) -> Any:
        old = x.shape[2:]
        given = [] if factors is None or any(f is None for f in factors) else [float(f or 0) for f in factors]
        size = output_size if output_size is not None else [times(d, f) for d, f in zip(old, given, strict=True)]
        own = {"mode": mode, **attrs} | ({"coordinates": "align_corners"} if corners and align else {})
        return resized(x, tuple(size), () if align else given, **own)

    def vec(input: Tensor, output_size: Any, *rest: Any, **named: Any) -> Any:
        align = named.get("align_corners", rest[0] if corners and rest else False)
        factors = named.get("scale_factors", rest[-1] if rest and len(rest) == 1 + corners else None)
        return import_(input, output_size, align, factors)

    def default(self: Tensor, output_size: Any, *rest: Any, **named: Any) -> Any:
        align = named.get("align_corners", rest[0] if corners and rest else False)
        keys = ["scales"] if rank == 1 else ["scales_d", "scales_h", "scales_w"][3 - rank :]
        listed = list(rest[1:] if corners else rest)
        factors = [named.get(key, listed[i] if i < len(listed) else None) for i, key in enumerate(keys)]
        return import_(self, output_size, align, factors)

    return {"vec": vec, "default": default}


def upsamples() -> dict[str, Callable[..., Any]]:
    """All of torch's `upsample` operators."""
    half: dict[str, Any] = {"coordinates": "half_pixel"}
    found: dict[str, Callable[..., Any]] = {}
    families: list[tuple[str, str, int, dict[str, Any]]] = []
    for rank in (1, 2, 3):
        families.append(
            (f"upsample_nearest{rank}d", "nearest", rank, {"coordinates": "asymmetric", "rounding": "floor"})
        )
        families.append((f"_upsample_nearest_exact{rank}d", "nearest", rank, half | {"rounding": "round_prefer_ceil"}))
        families.append((f"upsample_{('', 'linear', 'bilinear', 'trilinear')[rank]}{rank}d", "linear", rank, half))
    families.append(("upsample_bicubic2d", "cubic", 2, half))
    smooth = half | {"antialias": True, "exclude_outside": True}
    families += [
        ("_upsample_bilinear2d_aa", "linear", 2, smooth),
        ("_upsample_bicubic2d_aa", "cubic", 2, smooth | {"cubic": -0.5}),
    ]
    for name, mode, rank, attrs in families:
        found |= {f"{name}.{kind_}": fn for kind_, fn in upsample(mode, rank, **attrs).items()}
    return found


def resize_from_onnx(n: Source) -> Any:
    """`Resize` of opset 11 and later, and `Upsample`."""
    x = n.tensor(0)
    rank = len(x.shape)
    coordinates = n.attr("coordinate_transformation_mode", "asymmetric" if n.op == "Upsample" else "half_pixel")
    if coordinates == "tf_crop_and_resize":
        raise UnsupportedOperator("Resize that crops")
    axes = [int(a) % rank for a in n.attr("axes", range(rank))]
    at = 1 if n.op == "Upsample" else 2
    scales = n.constant(at) if n.get(at) is not None else np.zeros(0)
    size, factors = list(x.shape), [1.0] * rank
    if scales.size:
        for axis, scale in zip(axes, scales.ravel().tolist(), strict=True):
            size[axis], factors[axis] = times(x.shape[axis], scale), scale
    else:
        wanted = n.dims(3)
        policy = n.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            wanted, factors = proportional(x, axes, wanted, policy)
        for axis, d in zip(axes, wanted, strict=True):
            size[axis] = d
    attrs = {
        "mode": n.attr("mode", "nearest"),
        "coordinates": coordinates,
        "rounding": n.attr("nearest_mode", "floor" if n.op == "Upsample" else "round_prefer_floor"),
        "cubic": n.attr("cubic_coeff_a", -0.75),
        "exclude_outside": bool(n.attr("exclude_outside", 0)),
        "antialias": bool(n.attr("antialias", 0)),
    }
    first = next((i for i in range(rank) if size[i] != x.shape[i] or factors[i] != 1), rank)
    first = min(first, 2)
    return resized(x, size[first:], factors[first:] if scales.size or factors != [1.0] * rank else (), **attrs)


def proportional(x: Tensor, axes: Sequence[int], wanted: Sequence[Dim], policy: str) -> tuple[list[int], list[float]]:
    """Sizes that keep the aspect ratio, at most or at least the wanted ones, and the factor for each axis of `x`."""
    old = [x.shape[axis] for axis in axes]
    if any(isinstance(d, str) for d in (*old, *wanted)):
        raise UnsupportedOperator(f"Resize to {list(wanted)} with the aspect ratio of {list(x.shape)}")
    ratios = [int(b) / int(a) for a, b in zip(old, wanted, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    factors = [scale if i in axes else 1.0 for i in range(len(x.shape))]
    return [math.floor(int(a) * scale + 0.5) for a in old], factors


def resize_from_relax(n: Source) -> Any:
    """`image.resize2d` of images with their channels first."""
    layout, mode = n.attr("layout", "NCHW"), n.attr("method", "linear")
    if layout != "NCHW":
        raise UnsupportedOperator(f"image.resize2d in layout {layout}")
    names = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
    roundings = {"round": "round_prefer_floor", "": "round_prefer_floor"}
    rounding = n.attr("rounding_method", "round")
    return resized(
        n.tensor(0), tuple(n.dims(1)), mode=names[mode], coordinates=n.attr("coordinate_transformation_mode"),
        rounding=roundings.get(rounding, rounding), cubic=float(n.attr("cubic_alpha", -0.75)),
        exclude_outside=bool(n.attr("cubic_exclude", 0)),
    )  # fmt: skip


RESIZE: list[Op] = [
    Op(
        "resize",
        axes=resize_axes,
        attrs=DEFAULTS,
        symbolic=("size",),
        new=resize_size,
        aten=upsamples(),
        from_onnx={"Resize": resize_from_onnx, "Upsample": resize_from_onnx},
        from_relax={"image.resize2d": resize_from_relax},
        torch=resize_to_torch,
        onnx=resize_to_onnx,
        relax=resize_to_relax,
        msc="image.resize2d",
    ),
]
