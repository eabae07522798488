"""Train the baselines on Fashion-MNIST and keep them as graphs: `python -m experiments.train_baselines resnet20`.

SGD with Nesterov momentum on a one-cycle schedule that counts steps, random flips and shifts of two pixels, label
smoothing, bfloat16 autocast where it is faster. Trains on the 55,000 training images; validation is printed, and test
is used once, at the end. The result goes to `experiments/baselines/NAME/` with the figures in `training.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from experiments import models
from msc_core.data import Split, accuracy, fashion_mnist
from msc_core.frontends.torch import from_torch
from msc_core.ir import write_atomic
from msc_core.tools.finetune import augment


@dataclass
class Recipe:
    """What a run depends on; `python -m experiments.train_baselines NAME` uses exactly these."""

    epochs: int
    """Passes over the 55,000 training images."""
    bfloat16: bool = True
    """Autocast the forward pass; depthwise convolutions are slower in bfloat16 on a CPU."""
    batch: int = 128
    """Images per step."""
    lr: float = 0.1
    """Peak of the one-cycle schedule."""
    weight_decay: float = 5e-4
    """L2 penalty."""
    label_smoothing: float = 0.1
    """Mass given to the other classes."""
    seed: int = 0
    """Seeds torch and NumPy."""


RECIPES = {
    "resnet20": Recipe(epochs=24),
    "vgg": Recipe(epochs=16, lr=0.05),
    "mobilenet": Recipe(epochs=18, bfloat16=False, weight_decay=1e-4),
}


@torch.no_grad()
def evaluate(model: torch.nn.Module, split: Split) -> float:
    """Top-1 accuracy in float32."""
    model.eval()
    logits = [model(torch.from_numpy(batch.x)).numpy() for batch in split.batches(500)]
    return accuracy(np.concatenate(logits), split.y)


def train(name: str, recipe: Recipe) -> tuple[torch.nn.Module, dict[str, float]]:
    """Train one network; returns it in eval mode with its accuracies."""
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    data = fashion_mnist()
    x, y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y)
    if len(x) != 55_000:
        raise SystemExit("the baselines are trained on the full set: apt-get install dataset-fashion-mnist")
    model = getattr(models, name)().to(memory_format=torch.channels_last)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=recipe.lr, momentum=0.9, nesterov=True,
    )  # fmt: skip
    steps = len(x) // recipe.batch * recipe.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=steps, pct_start=0.2)
    for epoch in range(recipe.epochs):
        model.train()
        started, total = time.time(), 0.0
        order = torch.randperm(len(x), generator=generator)[: steps // recipe.epochs * recipe.batch]
        for index in order.split(recipe.batch):
            batch = augment(x[index], generator)
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
                logits = model(batch)
            loss = F.cross_entropy(logits.float(), y[index], label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(index)
        validation = evaluate(model, data.validation)
        took = f"{time.time() - started:.0f} s"
        print(f"{name} {epoch + 1}/{recipe.epochs} loss {total / len(x):.4f} val {validation:.4f} {took}", flush=True)
    figures = {"validation": evaluate(model, data.validation), "test": evaluate(model, data.test)}
    return model.to(memory_format=torch.contiguous_format), figures


def main() -> None:
    """Train the networks that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=RECIPES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "baselines")
    arguments = parser.parse_args()
    for name in arguments.names:
        model, figures = train(name, RECIPES[name])
        print(name, figures)
        example = torch.zeros(2, 1, 28, 28)
        from_torch(model, (example,), name=name, dynamic_shapes=({0: "N"},)).save(arguments.out / name)
        record = {"command": f"python -m experiments.train_baselines {name}", **asdict(RECIPES[name]), **figures}
        write_atomic(arguments.out / name / "training.json", (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
