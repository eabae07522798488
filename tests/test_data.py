"""The data: the repository's subset is part of the full set, splits never move, and bad files are refused clearly."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from experiments.fashion_mnist_subset import idx_bytes, write_subset
from msc_core import data
from msc_core.data import Dataset, Split
from msc_core.errors import MscError

DEBIAN, SUBSET = data.FASHION_MNIST_PATHS
ORDER_START = [46040, 35254, 37368, 55678, 1565]
SUBSET_FINGERPRINT = "7fb3ca75a33e74e0"  # changes only if the images, the order or the normalization change
no_deadline = settings(deadline=None)  # files on a busy machine
needs_full_set = pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")


@pytest.fixture(scope="module")
def subset() -> Dataset:
    return data.fashion_mnist(SUBSET)


@pytest.fixture(scope="module")
def full() -> Dataset:
    return data.fashion_mnist(DEBIAN)


def same(a: Split, b: Split) -> bool:
    return all(p.dtype == q.dtype and np.array_equal(p, q) for p, q in ((a.x, b.x), (a.y, b.y)))


# Fashion-MNIST


def test_subset_sizes(subset):
    assert (len(subset.train), len(subset.validation), len(subset.test)) == (5_000, 5_000, 10_000)


@needs_full_set
def test_full_sizes(full):
    assert (len(full.train), len(full.validation), len(full.test)) == (55_000, 5_000, 10_000)


@needs_full_set
def test_subset_has_the_full_sets_validation_and_test_bit_for_bit(subset, full):
    assert same(subset.validation, full.validation)
    assert same(subset.test, full.test)


@needs_full_set
def test_subset_trains_on_the_start_of_the_full_train_split(subset, full):
    assert same(subset.train, full.train.head(5_000))


@needs_full_set
def test_subset_script_writes_what_is_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(lzma, "compress", lambda content, preset: content)  # compare contents, not a packer's version
    write_subset(DEBIAN, tmp_path)
    for path in SUBSET.glob("*.xz"):
        assert (tmp_path / path.name).read_bytes() == lzma.decompress(path.read_bytes())


def test_subset_is_small():
    assert sum(path.stat().st_size for path in SUBSET.iterdir()) < 10e6


def test_full_set_is_preferred():
    assert len(data.load("fashion_mnist").train) == (55_000 if DEBIAN.is_dir() else 5_000)


@pytest.mark.parametrize("split", data.SPLITS)
def test_inputs_and_labels(subset, split):
    x, y = getattr(subset, split).x, getattr(subset, split).y
    assert (x.shape[1:], x.dtype, y.dtype) == ((1, 28, 28), np.float32, np.int64)
    assert np.isfinite(x).all()
    assert set(y.tolist()) == set(range(10))


def test_inputs_are_normalized(subset):
    assert abs(subset.train.x.mean()) < 0.02
    assert abs(subset.train.x.std() - 1) < 0.02


def test_class_counts_of_the_test_set_are_equal(subset):
    assert np.bincount(subset.test.y).tolist() == [1_000] * 10


@needs_full_set
def test_class_counts_of_the_training_images_are_equal(full):
    counts = np.bincount(full.train.y) + np.bincount(full.validation.y)
    assert counts.tolist() == [6_000] * 10


def test_class_counts_of_validation_are_near_equal(subset):
    # hypergeometric: standard deviation sqrt(5000 * 0.1 * 0.9 * 55/60) = 20.3
    assert np.abs(np.bincount(subset.validation.y) - 500).max() < 4 * 20.3


def test_train_and_validation_share_no_image():
    order = data.fashion_mnist_order()
    assert np.array_equal(np.sort(order), np.arange(60_000))


def test_the_order_never_changes():
    order = data.fashion_mnist_order()
    assert np.array_equal(order, data.fashion_mnist_order())
    assert order[:5].tolist() == ORDER_START


def test_the_content_never_changes(subset):
    assert subset.fingerprint == data.fashion_mnist(SUBSET).fingerprint == SUBSET_FINGERPRINT


def test_missing_files_are_named(tmp_path):
    with pytest.raises(MscError, match=r"train-images-idx3.*dataset-fashion-mnist"):
        data.fashion_mnist(tmp_path)


# IDX files

idx_arrays = arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("idx")


@no_deadline
@given(array=idx_arrays, packer=st.sampled_from([("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]))
def test_idx_round_trip(folder, array, packer):
    suffix, pack = packer
    path = folder / f"array-idx{suffix}"
    path.write_bytes(pack(idx_bytes(array)))
    found = data.read_idx(path)
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@no_deadline
@given(array=idx_arrays, cut=st.floats(0, 1, exclude_max=True), pack=st.sampled_from([bytes, gzip.compress]))
def test_idx_cut_short_is_refused(folder, array, cut, pack):
    content = pack(idx_bytes(array))
    path = folder / ("cut.gz" if pack is gzip.compress else "cut")
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(MscError, match="cut"):
        data.read_idx(path)


@no_deadline
@given(content=st.binary(max_size=300), suffix=st.sampled_from(["", ".gz", ".xz"]))
@example(content=b"\0\0\x08\x64" + b"\0\0\0\1" * 100 + b"\0", suffix="")  # 100 dimensions of 1
@example(content=gzip.compress(bytes(100))[:10] + b"\xff" * 20, suffix=".gz")  # a good header, then no deflate stream
@example(content=b"\0\0\x08\3" + b"\xff" * 12, suffix="")  # 2**96 elements
@example(content=b"", suffix="")
def test_idx_garbage_is_refused(folder, content, suffix):
    path = folder / f"garbage{suffix}"
    path.write_bytes(content)
    with pytest.raises(MscError, match="garbage"):
        data.read_idx(path)


def test_idx_missing_file_is_named(tmp_path):
    with pytest.raises(MscError, match="nowhere"):
        data.read_idx(tmp_path / "nowhere")


# A data set of your own


def own(**changes):
    """Six arrays that make a valid `.npz`, with `changes`."""
    good = {f"{split}_x": np.ones((3, 2), np.float32) for split in data.SPLITS}
    good |= {f"{split}_y": np.arange(3) for split in data.SPLITS}
    return good | changes


def saved(path: Path, content) -> Path:
    np.savez(path, **{key: value for key, value in content.items() if value is not None})
    return path


@no_deadline
@given(
    x=arrays.arrays(np.float32, st.tuples(st.just(4), st.integers(1, 3), st.integers(1, 3))),
    y=arrays.arrays(np.int64, 4),
)
def test_npz_round_trip(folder, x, y):
    path = saved(folder / "own.npz", own(train_x=x, train_y=y))
    found = data.from_npz(path)
    assert found.name == "own"
    assert found.train.x.dtype == np.float32 and found.train.y.dtype == np.int64
    assert np.array_equal(found.train.x, x, equal_nan=True)
    assert np.array_equal(found.train.y, y)


def test_npz_is_loaded_by_its_name(tmp_path):
    path = saved(tmp_path / "own.npz", own())
    assert data.load("own.npz", tmp_path).fingerprint == data.load(str(path)).fingerprint


REFUSED = {
    "object arrays": ({"train_x": np.array([{}, [], 1], object)}, "Object arrays cannot be loaded"),
    "a missing key": ({"validation_y": None}, "lacks validation_y; expected train_x, train_y"),
    "labels that are not integers": ({"test_y": np.array([0.5, 1, 2])}, "test_y holds float64, expected integers"),
    "inputs that are not numbers": ({"test_x": np.array(["a", "b", "c"])}, "test_x holds <U1, expected real numbers"),
    "too few labels": ({"train_y": np.arange(2)}, r"labels \(2,\)"),
    "one-hot labels": ({"train_y": np.eye(3, dtype=int)}, r"labels \(3, 3\)"),
    "a scalar": ({"train_x": np.float32(1)}, r"inputs \(\)"),
    "nothing": ({"train_x": np.ones((0, 2)), "train_y": np.arange(0)}, r"labels \(0,\)"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_npz_refuses(tmp_path, changes, message):
    with pytest.raises(MscError, match=message):
        data.from_npz(saved(tmp_path / "own.npz", own(**changes)))


def test_npz_never_unpickles(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    with pytest.raises(MscError, match="Object arrays"):
        data.from_npz(saved(tmp_path / "own.npz", own(train_x=np.array([Bomb()] * 3, object))))


@no_deadline
@given(keep=st.floats(0, 1, exclude_max=True))
def test_npz_cut_short_is_refused(folder, keep):
    path = saved(folder / "cut.npz", own())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(MscError, match="cut"):
        data.from_npz(path)


@no_deadline
@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_npz_with_a_changed_byte_is_read_or_refused(folder, position, value):
    path = folder / "changed.npz"
    np.savez_compressed(path, **own())
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    try:
        assert len(data.from_npz(path).train) == 3
    except MscError as error:
        assert "changed" in str(error)


def test_an_encrypted_npz_is_refused(folder):
    path = folder / "encrypted.npz"
    np.savez(path, **own())
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(MscError, match="encrypted"):
        data.from_npz(path)


def test_npz_refuses_other_files(tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    for path in (tmp_path / "array.npy", tmp_path / "nowhere.npz", tmp_path):
        with pytest.raises(MscError, match="not a readable"):
            data.from_npz(path)


def test_unknown_name_gets_the_nearest():
    with pytest.raises(MscError, match="did you mean 'fashion_mnist'"):
        data.load("fashion-mnist")


# Splits and metrics


def test_fingerprint_depends_on_every_element():
    def dataset(x):
        split = Split(np.zeros((2, 3), np.float32), np.arange(2))
        return Dataset("d", Split(x, np.arange(2)), split, split)

    changed = np.zeros((2, 3), np.float32)
    changed[1, 2] = 1e-30
    variants = [np.zeros((2, 3), np.float32), changed, np.zeros((2, 3)), np.zeros((2, 1, 3), np.float32)]
    assert len({dataset(x).fingerprint for x in variants}) == len(variants)
    assert dataset(variants[0]).fingerprint == dataset(variants[0].copy()).fingerprint


@no_deadline
@given(count=st.integers(1, 40), size=st.integers(1, 50))
def test_batches_are_the_split_in_order(count, size):
    split = Split(np.arange(count, dtype=np.float32)[:, None], np.arange(count))
    batches = list(split.batches(size))
    assert all(len(batch) <= size for batch in batches)
    assert np.concatenate([batch.y for batch in batches]).tolist() == split.y.tolist()
    assert all(np.array_equal(batch.x[:, 0], batch.y) for batch in batches)


@no_deadline
@given(labels=arrays.arrays(np.int64, st.integers(1, 50), elements=st.integers(0, 9)), wrong=st.integers(0, 50))
def test_accuracy_counts_the_right_ones(labels, wrong):
    wrong = min(wrong, len(labels))
    predicted = labels.copy()
    predicted[:wrong] = (predicted[:wrong] + 1) % 10
    logits = np.eye(10, dtype=np.float32)[predicted]
    assert data.accuracy(logits, labels) == pytest.approx(1 - wrong / len(labels))


def test_accuracy_of_a_uniform_guess_is_the_share_of_its_class():
    logits = np.zeros((8, 4))
    logits[:, 2] = 1
    assert data.accuracy(logits, np.array([2, 2, 0, 1, 3, 2, 2, 0])) == 0.5
