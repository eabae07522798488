"""Write the repository's subset of Fashion-MNIST from the full set: `python -m experiments.fashion_mnist_subset`.

The training images go through `fashion_mnist_order()` and the first 10,000 are kept, so the subset's first 5,000 are
the validation split of the full set and the next 5,000 are the start of its train split. The test set is kept whole.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

from msc_core.data import FASHION_MNIST_PARTS, FASHION_MNIST_PATHS, Array, fashion_mnist_order, read_idx

KEPT = 10_000


def idx_bytes(array: Array) -> bytes:
    """The IDX file of an uint8 array: what `read_idx` reads."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.tobytes()


def write_subset(source: Path, target: Path) -> None:
    """Write the four `.xz` files of the subset into `target` from the full set's `.gz` files in `source`."""
    target.mkdir(parents=True, exist_ok=True)
    kept = fashion_mnist_order()[:KEPT]
    for part in FASHION_MNIST_PARTS:
        array = read_idx(source / f"{part}-ubyte.gz")
        content = idx_bytes(array[kept] if part.startswith("train") else array)
        (target / f"{part}-ubyte.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    """Write the subset and print the size of each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=FASHION_MNIST_PATHS[0], help="folder of the full set")
    parser.add_argument("--out", type=Path, default=FASHION_MNIST_PATHS[1], help="folder to write")
    arguments = parser.parse_args()
    write_subset(arguments.source, arguments.out)
    for path in sorted(arguments.out.glob("*.xz")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
