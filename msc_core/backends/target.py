"""What to build for: a backend and words for it, written `backend:words`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msc_core.errors import MscError, nearest

KNOWN = ("onnxruntime", "openvino", "tensorflow", "tensorrt", "torch", "tvm")


@dataclass(frozen=True)
class Target:
    """A backend's name and its options, in the backend's own words.

    >>> Target.parse("tvm:llvm -mcpu=native")
    Target(backend='tvm', options=('llvm', '-mcpu=native'))
    >>> str(_)
    'tvm:llvm -mcpu=native'
    """

    backend: str
    options: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> Target:
        """Read `backend` or `backend:option option`. Raises `MscError` for an unknown backend."""
        backend, _, options = text.strip().partition(":")
        if backend not in KNOWN:
            raise MscError(f"target {text!r}: unknown backend {backend!r}{nearest(backend, KNOWN, every=True)}")
        return Target(backend, tuple(options.split()))

    def check_options(self, known: Iterable[str]) -> None:
        """Raise `MscError` if an option is not among `known`."""
        known = list(known)
        for option in self.options:
            if option not in known:
                raise MscError(f"target '{self}': unknown option {option!r}{nearest(option, known)}")

    def __str__(self) -> str:
        return f"{self.backend}:{' '.join(self.options)}" if self.options else self.backend
