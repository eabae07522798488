"""A data set is three splits of arrays: search sees `train` and `validation`; `test` is for the final table."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from msc_core.errors import MscError, nearest

Array = np.ndarray[Any, np.dtype[Any]]

SPLITS = ("train", "validation", "test")
FASHION_MNIST_PATHS = (
    Path("/usr/share/datasets/fashion-mnist"),  # Debian's package dataset-fashion-mnist
    Path(__file__).parents[1] / "experiments" / "data" / "fashion-mnist",  # the subset in this repository
)
FASHION_MNIST_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
FASHION_MNIST_SEED, FASHION_MNIST_VALIDATION = 20260228, 5_000
FASHION_MNIST_MEAN, FASHION_MNIST_STD = 0.2860, 0.3530
IDX_MAX_DIMS = 8  # images have 3; the format allows 255, NumPy does not


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs `x` of shape (N, ...), float32, and integer labels `y` of shape (N,)."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or self.x.ndim == 0 or len(self.x) != len(self.y) or len(self.y) == 0:
            found = f"inputs {self.x.shape} and labels {self.y.shape}"
            raise MscError(f"a split needs labels (N,) for inputs (N, ...), at least one; found {found}")

    def __len__(self) -> int:
        return len(self.y)

    def head(self, count: int) -> Split:
        """The first `count` samples (splits are stored shuffled, so this is a random sample that never changes)."""
        return Split(self.x[:count], self.y[:count])

    def batches(self, size: int) -> Iterator[Split]:
        """Consecutive pieces of at most `size` samples."""
        for start in range(0, len(self), size):
            yield Split(self.x[start : start + size], self.y[start : start + size])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits under one name; `fingerprint` is a content hash, part of every cache key."""

    name: str
    train: Split
    validation: Split
    test: Split

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that depend on every element, dtype and shape, and not on the name."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            for array in (split.x, split.y):
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]


def accuracy(logits: Array, labels: Array) -> float:
    """Top-1 accuracy in [0, 1] of `logits` (N, classes) against integer `labels` (N,)."""
    return float((logits.argmax(axis=-1) == labels).mean())


def read_idx(path: Path) -> Array:
    """An uint8 array from an IDX file (LeCun's format), plain, `.gz` or `.xz`.

    Raises `MscError` if the file is not IDX or is cut short.
    """
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    try:
        with openers.get(path.suffix, open)(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise MscError(f"cannot read {path}: {error}") from error
    dims = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    if not 0 < dims <= IDX_MAX_DIMS or len(content) != 4 + 4 * dims + math.prod(shape):
        raise MscError(f"{path} is not a whole IDX file of bytes (found {len(content)} bytes, header {content[:4]!r})")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(shape)


def fashion_mnist_order() -> Array:
    """The fixed shuffle of the 60,000 training images: the first 5,000 are validation, the rest train."""
    return np.random.default_rng(FASHION_MNIST_SEED).permutation(60_000)


def fashion_mnist(root: str | Path | None = None) -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017, MIT), normalized, as (N, 1, 28, 28) float32 and int64 labels.

    Reads `root`, else Debian's `dataset-fashion-mnist` (train 55,000 / validation 5,000 / test 10,000), else the
    subset in this repository (train 5,000 / the same validation / the same test). Raises `MscError` if there is none.
    """
    for folder in [Path(root)] if root else FASHION_MNIST_PATHS:
        files = {p.name.split("-ubyte")[0]: p for p in sorted(folder.glob("*-ubyte*"))}
        if files.keys() >= set(FASHION_MNIST_PARTS):
            break
    else:
        places = root or " or ".join(map(str, FASHION_MNIST_PATHS))
        parts = ", ".join(FASHION_MNIST_PARTS)
        raise MscError(f"no Fashion-MNIST in {places} (files {parts}); install Debian's dataset-fashion-mnist")
    images, labels = read_idx(files["train-images-idx3"]), read_idx(files["train-labels-idx1"])
    if len(images) == 60_000:  # the subset is stored in this order already
        order = fashion_mnist_order()
        images, labels = images[order], labels[order]

    def split(images: Array, labels: Array) -> Split:
        x = (images[:, None].astype(np.float32) / 255 - FASHION_MNIST_MEAN) / FASHION_MNIST_STD
        return Split(x.astype(np.float32), labels.astype(np.int64))

    return Dataset(
        "fashion_mnist",
        train=split(images[FASHION_MNIST_VALIDATION:], labels[FASHION_MNIST_VALIDATION:]),
        validation=split(images[:FASHION_MNIST_VALIDATION], labels[:FASHION_MNIST_VALIDATION]),
        test=split(read_idx(files["t10k-images-idx3"]), read_idx(files["t10k-labels-idx1"])),
    )


def from_npz(path: str | Path) -> Dataset:
    """A data set of your own: an `.npz` with `train_x, train_y, validation_x, validation_y, test_x, test_y`.

    Inputs become float32, labels int64; object arrays are refused, so nothing is unpickled.
    """
    path = Path(path)
    expected = [f"{split}_{part}" for split in SPLITS for part in "xy"]
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:  # np.load alone reads other formats too
            missing = [key for key in expected if key not in file.files]
            arrays = {key: file[key] for key in expected if key not in missing}
    except (OSError, ValueError, EOFError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise MscError(f"{path} is not a readable .npz of plain arrays: {error}") from error
    if missing:
        raise MscError(f"{path} lacks {', '.join(missing)}; expected {', '.join(expected)}")
    for key, array in arrays.items():
        if array.dtype.kind not in ("iub" if key.endswith("_y") else "iubf"):
            wanted = "integers" if key.endswith("_y") else "real numbers"
            raise MscError(f"{path}: {key} holds {array.dtype}, expected {wanted}")
    splits = {s: Split(arrays[f"{s}_x"].astype(np.float32), arrays[f"{s}_y"].astype(np.int64)) for s in SPLITS}
    return Dataset(path.stem, **splits)


def load(name: str, root: str | Path | None = None) -> Dataset:
    """The data set that a task file names: `fashion_mnist`, or the path of an `.npz`."""
    if name == "fashion_mnist":
        return fashion_mnist(root)
    if name.endswith(".npz"):
        return from_npz(Path(root or ".") / name)
    raise MscError(f"unknown data set {name!r}{nearest(name, ['fashion_mnist', 'FILE.npz'])}")
