"""Generators of one's own for code that draws from the global ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from msc_core.tools.threads import one_thread


class OwnRandom:
    """Inside `with`, the global generators of `random`, NumPy and torch are this object's, and torch has one thread.

    Afterwards they are as they were. The next `with` goes on where the last one ended; the first is expected to seed.
    """

    def __init__(self) -> None:
        self._own: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        self._threads = one_thread()
        self._threads.__enter__()
        self._others = _states()
        if self._own is not None:
            _restore(self._own)

    def __exit__(self, *exception: object) -> None:
        self._own = _states()
        _restore(self._others)
        self._threads.__exit__(None, None, None)


def _states() -> tuple[Any, ...]:
    import torch

    cuda: Any = torch.cuda
    devices = cuda.get_rng_state_all() if cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), devices


def _restore(states: tuple[Any, ...]) -> None:
    import torch

    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])
