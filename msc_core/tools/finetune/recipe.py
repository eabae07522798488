"""How a network is trained, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from msc_core.errors import MscError, nearest

TASKS = ("cross_entropy", "mse")
DISTANCES = ("kl", "lp")
MATCHINGS = ("channels", "attention")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("one_cycle", "cosine", "step", "constant")


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum on a one-cycle schedule, unless it says otherwise; time is counted in steps."""

    steps: int = 800
    """Optimizer steps; 0 leaves the graph as it is."""
    lr: float = 0.02
    """Peak learning rate."""
    batch: int = 128
    """Samples per step."""
    weight_decay: float = 1e-4
    """L2 penalty on weights, not on biases or norms; decoupled from the gradient for "adamw"."""
    distill: float = 0.7
    """Share of the distillation loss; the rest is the loss of the task."""
    temperature: float = 2.0
    """Softens both distributions in the distillation loss (Hinton et al. 2015)."""
    augment: bool = True
    """Flip and shift images; needs inputs (N, C, H, W)."""
    seed: int = 0
    """Seeds the order of samples, the augmentation and dropout."""
    task: str = "cross_entropy"
    """What labels mean: classes ("cross_entropy") or numbers ("mse")."""
    distance: str = "kl"
    """Between the outputs of teacher and student: "kl" of the distributions, or "lp" of the outputs themselves."""
    power: float = 2.0
    """p of the "lp" distance and of the feature losses: the mean of |difference| ** p."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Tensors at which the student follows the teacher, by name, and the weight of that loss in the sum."""
    matching: str = "channels"
    """Features are compared on the "channels" that both have, or by their "attention" (Zagoruyko & Komodakis 2017)."""
    optimizer: str = "sgd"
    """"sgd" with Nesterov momentum 0.9, "adam" or "adamw"."""
    schedule: str = "one_cycle"
    """"one_cycle", "cosine" to zero, "step" (a tenth at each third of the steps) or "constant"."""
    clip: float = 0.0
    """Largest L2 norm of all gradients together; 0 for no limit."""
    validate: int = 100
    """Steps between looks at the validation data, where it is given; the best weights seen are the result."""
    patience: int = 0
    """Looks without a new best after which training stops; 0 for never."""
    ema: float = 0.0
    """Decay of a moving average of the weights, which is then what is validated and returned; 0 for none."""
    bfloat16: bool = False
    """Compute in bfloat16 where torch's autocast does; weights, losses and updates stay float32."""
    save: int = 100
    """Steps between checkpoints, where a file for them is given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", dict(self.features))
        for name in ("steps", "weight_decay", "clip", "patience"):
            self._expect(name, getattr(self, name) >= 0, "at least 0")
        for name in ("batch", "validate", "save"):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "temperature", "power"):
            self._expect(name, 0 < getattr(self, name) < math.inf, "above 0")
        self._expect("distill", 0 <= self.distill <= 1, "0 to 1")
        self._expect("ema", 0 <= self.ema < 1, "at least 0 and below 1")
        for tensor, weight in self.features.items():
            if not 0 < weight < math.inf:
                raise MscError(f"recipe: features[{tensor!r}] must be above 0; found {weight}")
        for name, known in (
            ("task", TASKS), ("distance", DISTANCES), ("matching", MATCHINGS), ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
        ):  # fmt: skip
            if (found := getattr(self, name)) not in known:
                raise MscError(f"recipe: unknown {name} {found!r}{nearest(str(found), known, every=True)}")

    def _expect(self, name: str, right: bool, expected: str) -> None:
        if not right:  # which NaN is not either
            raise MscError(f"recipe: {name} must be {expected}; found {getattr(self, name)}")
