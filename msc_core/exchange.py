"""Arrays between NumPy, torch and files, with bfloat16, which NumPy only knows through `ml_dtypes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]

SAFETENSORS = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64",
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name, "bfloat16" included. Raises `TypeError` if there is none."""
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)


def from_torch_tensor(value: torch.Tensor) -> Array:
    """A copy of a tensor on any device."""
    import torch

    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().copy().view(numpy_dtype("bfloat16"))
    copy: Array = value.numpy().copy()
    return copy


def to_torch_tensor(array: Array) -> torch.Tensor:
    """A copy of an array."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def read_safetensors(content: bytes) -> dict[str, Array]:
    """The arrays of a safetensors file. Raises `SafetensorError` if it is not one, `KeyError` for unknown dtypes."""
    import safetensors

    names = {code: name for name, code in SAFETENSORS.items()}
    deserialize: Any = safetensors.deserialize
    return {
        name: np.frombuffer(view["data"], numpy_dtype(names[view["dtype"]])).reshape(view["shape"])
        for name, view in deserialize(content)
    }
