"""Small networks, one or more per structure that pruning has to get right.

`NETWORKS` is the table of all, `MICRO_NETWORKS` the basic ones by class, with inputs of `SHAPES` or (3, 8, 8).
"""

from __future__ import annotations

from tests.micro_networks.attention import ATTENTION
from tests.micro_networks.convolution import (
    CONVOLUTION,
    Chain,
    DepthMultiplier,
    Grouped,
    GroupedTwice,
    OneChannel,
    Pools,
)
from tests.micro_networks.drawn import RandomNet
from tests.micro_networks.gating import GATING, BatchedLinear, ScaledChannels, SqueezeExcite
from tests.micro_networks.joining import JOINING, Concat, InputConcat, Inverted, Residual, SelfConcat
from tests.micro_networks.movement import MOVEMENT, FlattenLinear, ViewConv
from tests.micro_networks.network import Network, distinct, randomized
from tests.micro_networks.norm import NORM, ChannelMean, ChannelSoftmax
from tests.micro_networks.recurrent import RECURRENT
from tests.micro_networks.tying import TYING, TiedWeights

NETWORKS = (*CONVOLUTION, *JOINING, *GATING, *MOVEMENT, *NORM, *ATTENTION, *RECURRENT, *TYING)
MICRO_NETWORKS = (
    Chain,
    Residual,
    Inverted,
    DepthMultiplier,
    Grouped,
    GroupedTwice,
    Concat,
    SelfConcat,
    InputConcat,
    OneChannel,
    SqueezeExcite,
    FlattenLinear,
    ViewConv,
    TiedWeights,
    ScaledChannels,
    ChannelSoftmax,
    ChannelMean,
    BatchedLinear,
    Pools,
)
SHAPES = {"BatchedLinear": (6, 8)}

__all__ = [
    "MICRO_NETWORKS",
    "NETWORKS",
    "SHAPES",
    "BatchedLinear",
    "Chain",
    "ChannelMean",
    "ChannelSoftmax",
    "Concat",
    "DepthMultiplier",
    "FlattenLinear",
    "Grouped",
    "GroupedTwice",
    "InputConcat",
    "Inverted",
    "Network",
    "OneChannel",
    "Pools",
    "RandomNet",
    "Residual",
    "ScaledChannels",
    "SelfConcat",
    "SqueezeExcite",
    "TiedWeights",
    "ViewConv",
    "distinct",
    "randomized",
]
