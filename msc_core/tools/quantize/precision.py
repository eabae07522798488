"""What one layer asks for: bits, calibration and rounding, before anything is known of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from msc_core.errors import InvalidPlan, nearest
from msc_core.plan import MAX_BITS, ROUNDINGS
from msc_core.reading import STRICT

METHODS = ("minmax", "percentile", "entropy", "mse")


@dataclass(frozen=True)
class Precision:
    """How a layer is quantized; bits of 0 mean float, so `activations=0` is weight-only.

    - `weights`, `activations`: bits. `per_channel`: a weight scale for each output channel instead of one.
    - `symmetric`: weights about zero, which engines want that multiply integers, or with a zero point.
    - `method`: how the range of an activation is found on the calibration data; with "mse" that of a weight too.
    - `block`: columns of a weight that share a scale, 0 for all of them.
    - `rounding`: "gptq" compensates each column's rounding error in the columns after it (Frantar et al. 2023).
    """

    weights: int = 8
    activations: int = 8
    method: str = "minmax"
    per_channel: bool = True
    symmetric: bool = True
    block: int = 0
    rounding: str = "nearest"
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        for name, bits in (("weights", self.weights), ("activations", self.activations)):
            if bits != 0 and not 2 <= bits <= MAX_BITS:
                raise InvalidPlan(f"{name} must be 0 (float) or 2 to {MAX_BITS} bits; found {bits}")
        if self.method not in METHODS:
            raise InvalidPlan(f"unknown calibration {self.method!r}{nearest(self.method, METHODS)}")
        if self.rounding not in ROUNDINGS:
            raise InvalidPlan(f"unknown rounding {self.rounding!r}{nearest(self.rounding, ROUNDINGS)}")
        if self.block < 0:
            raise InvalidPlan(f"block must be at least 0; found {self.block}")
