"""The training loop: one for compressed networks, for quantization-aware modules and for masked ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msc_core.data import Split
from msc_core.errors import MscError, nearest
from msc_core.ir import Array
from msc_core.tools.finetune.augmentation import augment
from msc_core.tools.finetune.device import device, place
from msc_core.tools.finetune.losses import task_loss
from msc_core.tools.finetune.recipe import Recipe
from msc_core.tools.finetune.run import Run
from msc_core.tools.finetune.teacher import Teacher

if TYPE_CHECKING:
    import torch

Report = Callable[[int, int, float], None]  # (step, steps, loss)
SCORED = 250  # validation samples at a time


@dataclass(frozen=True)
class Trained:
    """What came of it: `history` has (step, score) for each look at the validation data, higher scores are better.

    The score is top-1 accuracy in [0, 1], or for "mse" the negative error. `best` is the step whose weights were kept.
    """

    steps: int
    loss: float
    best: int
    history: tuple[tuple[int, float], ...]


def fit(
    module: torch.nn.Module,
    train: Split,
    recipe: Recipe,
    teacher: Teacher | None = None,
    report: Report | None = None,
    *,
    validation: Split | None = None,
    masks: Mapping[str, Array] | None = None,
    checkpoint: str | Path | None = None,
) -> Trained:
    """Train `module` in place; its first output is what the task's loss looks at.

    With a `teacher` the module's last outputs are the features (`Teacher.extended`). `masks` are {parameter: array of
    its shape}, applied after every step. With a `checkpoint` file the state is written there every `recipe.save` steps
    and at the end; the same call goes on from it, and ends with the weights of a run that was never interrupted.
    Raises `MscError` before any work for what does not fit, and when the loss stops being finite.
    """
    from msc_core.tools.finetune.checkpoint import identity, load, save

    _check(module, train, recipe, teacher, validation)
    where, path = device(), Path(checkpoint) if checkpoint is not None else None
    module = place(module.train(), where)
    zeros = _masks(module, masks or {}, where)
    _apply(zeros)
    key = identity(module, train, recipe, teacher, validation, zeros) if path else ""
    with _seeded(recipe.seed):
        run = _start(module, recipe)
        if path and path.exists():
            load(path, run, key)
        elif validation is not None:
            _look(run, validation, recipe)
        while run.step < recipe.steps and not (recipe.patience and run.waited >= recipe.patience):
            _step(run, train, recipe, teacher, zeros)
            if validation is not None and (run.step % recipe.validate == 0 or run.step == recipe.steps):
                _look(run, validation, recipe)
            if path and (run.step % recipe.save == 0 or run.step == recipe.steps):
                save(path, run, key)
            if report is not None:
                report(run.step, recipe.steps, run.loss)
    module.load_state_dict(run.best or run.result.state_dict())
    module.eval().cpu()
    return Trained(run.step, run.loss, _best(run), tuple(run.history))


def _check(
    module: torch.nn.Module, train: Split, recipe: Recipe, teacher: Teacher | None, validation: Split | None
) -> None:
    if recipe.features and teacher is None:
        raise MscError(f"the recipe follows features {list(recipe.features)}, but there is no teacher")
    if recipe.patience and validation is None:
        raise MscError(f"patience {recipe.patience} needs validation data")
    if not any(p.requires_grad for p in module.parameters()):
        raise MscError("the network has no parameter that could be trained")
    if recipe.task == "cross_entropy" and train.y.dtype.kind not in "iu":
        raise MscError(f"task 'cross_entropy' needs integer labels; found {train.y.dtype}")


def _start(module: torch.nn.Module, recipe: Recipe) -> Run:
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    average: AveragedModel | None = None
    if recipe.ema:
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema))  # type: ignore[no-untyped-call]
    optimizer = _optimizer(module, recipe)
    generator = torch.Generator().manual_seed(recipe.seed)
    return Run(module, optimizer, _schedule(optimizer, recipe), average, generator)


def _optimizer(module: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    import torch

    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, nesterov=True)
    make = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return make(groups, lr=recipe.lr)


def _schedule(optimizer: torch.optim.Optimizer, recipe: Recipe) -> torch.optim.lr_scheduler.LRScheduler:
    from torch.optim import lr_scheduler

    if recipe.schedule == "one_cycle" and recipe.steps > 2:
        rise = 0.2 if recipe.steps > 5 else 0.5  # both phases need a step
        return lr_scheduler.OneCycleLR(
            optimizer, recipe.lr, total_steps=recipe.steps, pct_start=rise, cycle_momentum=False
        )
    if recipe.schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    if recipe.schedule == "step":
        return lr_scheduler.StepLR(optimizer, max(1, math.ceil(recipe.steps / 3)), gamma=0.1)
    return lr_scheduler.ConstantLR(optimizer, factor=1.0)


def _step(
    run: Run, train: Split, recipe: Recipe, teacher: Teacher | None, masks: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """One batch, one update."""
    import torch

    parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
    where = parameters[0].device
    index = torch.randint(len(train), (recipe.batch,), generator=run.generator)
    batch, labels = (torch.from_numpy(part[index.numpy()]) for part in (train.x, train.y))
    batch = augment(batch, run.generator) if recipe.augment and batch.ndim == 4 else batch
    loss = _loss(run.module, batch.to(where), labels.to(where), recipe, teacher)
    run.loss = loss.item()
    if not math.isfinite(run.loss):
        raise MscError(f"fine-tuning diverged at step {run.step} of {recipe.steps}: loss {run.loss}; lower lr")
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter, mask in masks:  # so that momentum and clipping do not see what stays zero
        if parameter.grad is not None:
            parameter.grad.mul_(mask)
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
    run.optimizer.step()
    _apply(masks)
    run.step += 1
    if run.step < recipe.steps:  # a one-cycle schedule has as many rates as steps
        run.schedule.step()
    if run.average is not None:
        run.average.update_parameters(run.module)


def _loss(
    module: torch.nn.Module, batch: torch.Tensor, labels: torch.Tensor, recipe: Recipe, teacher: Teacher | None
) -> torch.Tensor:
    """Of the task, mixed with the distance to the teacher, plus that of its features."""
    import torch

    with torch.autocast(batch.device.type, torch.bfloat16, enabled=recipe.bfloat16):
        found = module(batch)
    outputs = tuple(t.float() for t in (found if isinstance(found, tuple) else (found,)))
    share = recipe.distill if teacher is not None else 0.0
    loss = torch.zeros((), device=batch.device)
    if share < 1:
        loss = (1 - share) * task_loss(recipe.task, outputs[0], labels)
    if teacher is not None and (share > 0 or recipe.features):
        distance, features = teacher.loss(batch, outputs)
        loss = loss + share * distance + features
    return loss


def _look(run: Run, validation: Split, recipe: Recipe) -> None:
    """Score the result so far, and keep it if it is the best."""
    score = _score(run.result, validation, recipe)
    if not math.isfinite(score):
        raise MscError(
            f"fine-tuning diverged before step {run.step} of {recipe.steps}: the validation score is {score}"
        )
    best = max((found for _, found in run.history), default=-math.inf)
    run.history.append((run.step, score))
    run.waited = 0 if score > best else run.waited + 1
    if run.waited == 0:
        run.best = {name: value.detach().clone() for name, value in run.result.state_dict().items()}


def _score(module: torch.nn.Module, split: Split, recipe: Recipe) -> float:
    """See `Trained`."""
    import torch

    where = next(module.parameters()).device
    module.eval()
    total = 0.0
    with torch.no_grad():
        for part in split.batches(SCORED):
            found = module(torch.from_numpy(part.x).to(where))
            output = found[0] if isinstance(found, tuple) else found
            labels = torch.from_numpy(part.y).to(where)
            right = recipe.task == "cross_entropy"
            mean = (output.argmax(-1) == labels).float().mean() if right else -task_loss("mse", output, labels)
            total += mean.item() * len(part)
    module.train()
    return total / len(split)


def _best(run: Run) -> int:
    return max(run.history, key=lambda look: look[1])[0] if run.history else run.step


def _masks(module: torch.nn.Module, masks: Mapping[str, Array], where: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(parameter, mask) pairs."""
    import torch

    known = dict(module.named_parameters())
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for name, mask in masks.items():
        if name not in known:
            raise MscError(f"mask: no parameter {name!r}{nearest(name, known)}")
        if mask.shape != tuple(known[name].shape):
            raise MscError(f"mask of {name!r}: expected {list(known[name].shape)}, found {list(mask.shape)}")
        pairs.append((known[name], torch.from_numpy(mask != 0).to(where)))
    return pairs


def _apply(masks: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for parameter, mask in masks:
        parameter.data.mul_(mask)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's own random numbers, which dropout draws, for the time of a run."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
