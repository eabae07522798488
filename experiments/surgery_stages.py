"""What a pruned network has to go through, whichever tool pruned it, and how far it came."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tests.micro_networks.masking import masked, survivors

RATIO = 0.5  # of the channels of each group stay
STAGES = {  # what a network that stops there is called
    "prune": "fails while pruning",
    "nothing": "nothing pruned",
    "forward": "does not run",
    "mask": "computes something else",
    "tie": "one weight became two",
    "reload": "differs when reloaded",
    "onnx": "fails in ONNX Runtime",
    "backward": "has no gradient",
    "": "right",
}


@dataclass(frozen=True)
class Outcome:
    """The stage that failed, empty if none did; what was said; and the share of the parameters that is left."""

    stage: str
    detail: str = ""
    kept: float = 1.0


class Difference(Exception):
    """Two arrays that should be equal are not."""


@dataclass(frozen=True)
class Pruned:
    """A pruned network: to run, its weights by name, again from storage, and run by ONNX Runtime."""

    module: nn.Module
    weights: Mapping[str, np.ndarray]
    reload: Callable[[], nn.Module]
    onnx: Callable[[Tensor], np.ndarray]


def examine(original: nn.Module, x: Tensor, prune: Callable[[nn.Module], Pruned]) -> Outcome:
    """Prune a copy of a module and let the result go through all the stages."""
    stage, kept = "prune", 1.0
    try:
        pruned = prune(copy.deepcopy(original))
        kept = _size(pruned.weights) / _size(dict(original.named_parameters()) | dict(original.named_buffers()))
        if kept >= 1:
            return Outcome("nothing")
        stage = "forward"
        found = pruned.module.eval()(x).detach().numpy()
        stage = "mask"
        expected = masked(original, survivors(original, pruned.weights))(x).detach().numpy()
        _same(found, expected, 1e-5)
        stage = "tie"
        _tied(original, pruned.weights)
        stage = "reload"
        _same(pruned.reload().eval()(x).detach().numpy(), found, 0)
        stage = "onnx"
        _same(pruned.onnx(x), found, 1e-4)
        stage = "backward"
        pruned.module(x).square().sum().backward()
        if not all(p.grad is not None and p.grad.isfinite().all() for p in pruned.module.parameters()):
            raise Difference("a gradient is missing or not finite")
    except Exception as error:  # whatever a tool raises is its outcome
        return Outcome(
            stage, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}", kept
        )
    return Outcome("", "", kept)


def run_onnx(model: bytes, x: Tensor) -> np.ndarray:
    """The first output of an ONNX model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """The parameters and buffers of a module, tied ones once."""
    return {n: t.detach().numpy() for n, t in [*module.named_parameters(), *module.named_buffers()]}


def _tied(original: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Raise if two names of one parameter are two weights now."""
    names: dict[int, list[str]] = {}
    for name, parameter in original.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    if broken := next((same for same in names.values() if sum(name in weights for name in same) > 1), None):
        raise Difference(f"{' and '.join(broken)} were one weight")


def _size(tensors: Mapping[str, Tensor | np.ndarray]) -> int:
    """The number of floating-point elements."""
    found = [t.numpy(force=True) if isinstance(t, Tensor) else t for t in tensors.values()]
    return sum(array.size for array in found if array.dtype.kind == "f")


def _same(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    if found.shape != expected.shape:
        raise Difference(f"shape {found.shape} instead of {expected.shape}")
    error = float(np.abs(found - expected).max())
    if not np.allclose(found, expected, tolerance, tolerance):
        raise Difference(f"off by {error:.2g} where the largest number is {np.abs(expected).max():.2g}")


def single_threaded() -> None:
    """The networks are small; threads that wait for each other cost more than they bring."""
    torch.set_num_threads(1)
