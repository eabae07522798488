"""What a search decides: how many channels each group keeps, and with how many bits each layer multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal["prune", "quantize"]
PARTS: tuple[Part, ...] = ("prune", "quantize")
FLOAT = 32  # bits of a layer that is not quantized
Choices = Mapping[str, int]  # name of a decision -> the option that was taken


@dataclass(frozen=True)
class Decision:
    """One number of a candidate; `options` ascend, and the last one leaves `of` as it is.

    - "prune": `of` is a channel group, an option the count of channels that it keeps.
    - "quantize": `of` is a layer, an option the bits of its weights (its input has 8 then), or `FLOAT`.
    """

    name: str
    part: Part
    of: str
    options: tuple[int, ...]
    full: int

    def share(self, option: int) -> float:
        """Which part of the whole an option is, in (0, 1]."""
        return option / self.full


@dataclass(frozen=True)
class Site:
    """What one step of an episode decides, in the order of the network: a group, a layer, or both.

    `layer` is the layer, or the first that makes the group's channels.
    """

    layer: str
    decisions: tuple[Decision, ...]

    @property
    def name(self) -> str:
        """The group's name, or the layer's."""
        return self.decisions[0].of


def bits_of(layer: str) -> str:
    """The name of the decision on a layer's bits; a group's has the group's name.

    >>> bits_of("head.fc")
    'head.fc bits'
    """
    return f"{layer} bits"


def divided(choices: Choices) -> tuple[dict[str, int], dict[str, int]]:
    """Choices as counts by group, and bits by layer for those that are not float.

    >>> divided({"a": 8, "a bits": 8, "b bits": 32})
    ({'a': 8}, {'a': 8})
    """
    suffix = bits_of("")
    counts = {name: value for name, value in choices.items() if not name.endswith(suffix)}
    bits = {name.removesuffix(suffix): v for name, v in choices.items() if name.endswith(suffix) and v != FLOAT}
    return counts, bits
