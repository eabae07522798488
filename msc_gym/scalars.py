"""Scalars for TensorBoard: what each trial of a search was paid, and the best so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msc_core.errors import Unavailable

if TYPE_CHECKING:
    from msc_gym.engine import Measurement
    from msc_gym.search import Progress, Trial


class Scalars:
    """Writes event files into `folder`; `trial` is a `msc_gym.search.Progress`, which tells another one, too.

    Raises `Unavailable` if the package is not installed.
    """

    def __init__(self, folder: str | Path, also: Progress | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise Unavailable("scalars need the package tensorboard: pip install tensorboard") from None
        self._also = also
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, step: int, **values: float) -> None:
        """Write values at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace("__", "/"), value, step)

    def trial(
        self, index: int, total: int, agent: str, measurement: Measurement, best: Trial | None, hits: int
    ) -> None:
        """Write what is known after a trial."""
        m, known = measurement, {"trial__accuracy": measurement.accuracy, "trial__macs": measurement.macs}
        if m.latency_ratio is not None:
            known["trial__latency_ratio"] = m.latency_ratio
        if best is not None:
            known |= {"best__accuracy": best.measurement.accuracy, "best__reward": best.reward}
        self.add(index, cache__hits=hits, **known)
        if self._also is not None:
            self._also(index, total, agent, measurement, best, hits)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
