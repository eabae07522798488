"""Arrays as TVM saved them, read with NumPy alone: files of `save_param_dict`, and the constants of a JSON graph."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from msc_core.errors import InvalidGraph, MscError
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array

LIST_MAGIC = 0xF7E58D4F05049CB7
ARRAY_MAGIC = 0xDD5E40F096B4A13F
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # DLPack's type codes
MAX_RANK = 32


class _Reader:
    """Takes values off the front of a buffer; whatever it lacks is an `InvalidGraph`, before memory is asked for."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.at = data, what, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > len(self.data) - self.at:
            missing = count - (len(self.data) - self.at)
            raise InvalidGraph(f"{self.what} is cut off: {missing} bytes are missing behind byte {self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> int:
        """The next little-endian number, by its code in `struct`."""
        return int(struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0])

    def count(self, least: int) -> int:
        """A count of things that take `least` bytes each."""
        count = self.number("Q")
        if count * least > len(self.data) - self.at:
            raise InvalidGraph(f"{self.what} claims {count} entries, more than its {len(self.data)} bytes can hold")
        return count

    def array(self) -> Array:
        """The next array."""
        if (magic := self.number("Q")) != ARRAY_MAGIC:
            raise InvalidGraph(f"{self.what}: an array begins with {magic:#x}; expected {ARRAY_MAGIC:#x}")
        self.take(16)  # reserved, and the device, which is always the CPU
        rank, code, bits, lanes = self.number("i"), self.number("B"), self.number("B"), self.number("H")
        if not 0 <= rank <= MAX_RANK or lanes != 1:
            raise InvalidGraph(f"{self.what}: an array has rank {rank} and {lanes} lanes; expected at most 32 and 1")
        dtype = numpy_dtype(self.dtype(code, bits))
        shape = tuple(self.number("q") for _ in range(rank))
        size = self.number("q")
        if any(n < 0 for n in shape) or size != math.prod(shape) * dtype.itemsize:
            raise InvalidGraph(f"{self.what}: an array of {dtype.name}{list(shape)} claims {size} bytes")
        array: Array = np.frombuffer(self.take(size), dtype).reshape(shape).copy()
        return array if sys.byteorder == "little" else array.byteswap()

    def dtype(self, code: int, bits: int) -> str:
        """NumPy's name of a DLPack dtype."""
        name = "bool" if (code, bits) in ((1, 1), (6, 8)) else f"{KINDS.get(code, 'unknown')}{bits}"
        if name != "bool" and (code not in KINDS or code == 6 or bits not in (8, 16, 32, 64)):
            raise InvalidGraph(f"{self.what}: dtype code {code} with {bits} bits is not supported")
        return name


def read_params(params: str | Path | Mapping[str, Array] | bytes) -> dict[str, Array]:
    """Parameters by name: from a file or bytes that `save_param_dict` wrote, or a mapping as it is."""
    if isinstance(params, Mapping):
        return {
            str(name): np.asarray(value.numpy() if hasattr(value, "numpy") else value) for name, value in params.items()
        }
    what = "the parameters" if isinstance(params, (bytes, bytearray)) else str(params)
    try:
        data = bytes(params) if isinstance(params, (bytes, bytearray)) else Path(params).read_bytes()
    except OSError as error:
        raise MscError(f"cannot read {what}: {error.strerror}") from None
    reader = _Reader(data, what)
    if len(data) < 8 or (magic := reader.number("Q")) != LIST_MAGIC:
        found = f"begins with {magic:#x}" if len(data) >= 8 else f"has {len(data)} bytes"
        raise InvalidGraph(f"{what} {found}; a parameter file of TVM begins with {LIST_MAGIC:#x}")
    reader.take(8)
    try:
        names = [reader.take(reader.count(1)).decode() for _ in range(reader.count(8))]
    except UnicodeDecodeError as error:
        raise InvalidGraph(f"{what}: a name is not UTF-8: {error}") from None
    if (count := reader.count(40)) != len(names):
        raise InvalidGraph(f"{what} has {len(names)} names and {count} arrays")
    if len(set(names)) < len(names):
        raise InvalidGraph(f"{what} has two arrays of one name")
    return {name: reader.array() for name in names}


def read_base64(text: str, what: str) -> Array:
    """One array of a JSON graph."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidGraph(f"{what} is not base64: {error}") from None
    return _Reader(data, what).array()
