"""Networks that people use, each translated to every target: `python -m tests.zoo` writes `docs/networks.md`."""

from __future__ import annotations

from tests.zoo import images, language, models, own, torchvision_nets
from tests.zoo.network import Network

THEMES = {
    "Images: torchvision, timm and others": torchvision_nets.NETWORKS,
    "Images and volumes: transformers and monai": images.NETWORKS,
    "Language and speech: transformers": language.NETWORKS,
    "ONNX": models.NETWORKS,
    "Our own": own.NETWORKS,
}
NETWORKS: dict[str, Network] = {network.name: network for networks in THEMES.values() for network in networks}
