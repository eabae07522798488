"""The commands that apply one tool: prune, quantize, apply, track, finetune."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from msc_core import data as datasets
from msc_core.errors import MscError
from msc_gym.options import Inputs, Model

if TYPE_CHECKING:
    from msc_core.data import Dataset
    from msc_core.ir import MSCGraph
    from msc_core.plan import Plan
    from msc_core.tools.strategy import Rule

PLAN_FILE, GRAPH_FOLDER, CHECKPOINT = "plan.json", "graph", "checkpoint.safetensors"

Out = Annotated[Path, typer.Option(help=f"Folder for {PLAN_FILE} and {GRAPH_FOLDER}/.")]
Data = Annotated[str, typer.Option(help="fashion_mnist or an .npz: calibration, accuracy.", show_default=False)]
Calibration = Annotated[int, typer.Option(min=1, help="Training samples to look at.")]
StrategyFile = Annotated[
    Path | None, typer.Option(help="Rules, YAML or JSON, instead of the same for all layers.", show_default=False)
]


def prune(
    model: Model,
    out: Out,
    density: Annotated[float, typer.Option(help="Share of every group's channels to keep.")] = 0.5,
    method: Annotated[str, typer.Option(help="How channels are ranked: obs, activation, l1, l2, ...")] = "obs",
    divisor: Annotated[int, typer.Option(min=1, help="Kept counts are multiples of it.")] = 8,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Meet macs=0.5, params=... or bytes=... instead of one density.", show_default=False),
    ] = None,
    ranking: Annotated[str, typer.Option(help="With a budget: global, local or uniform.")] = "global",
    strategy: StrategyFile = None,
    data: Data = "",
    calibration: Calibration = 1000,
    inputs: Inputs = None,
) -> None:
    """Remove channels; with data, restore accuracy without training."""
    from msc_core.tools.strategy import Prune, Rule

    rule = Rule(prune=Prune(density, method, divisor))
    if not budget:
        return _by_rules(model, inputs, rule, strategy, data, calibration, out)
    from msc_core.tools.prune import Pruner
    from msc_core.tools.prune.ranking import allocate, check_budget
    from msc_gym.loading import load_graph, sample

    if strategy:
        raise MscError("--budget and --strategy both say how much to keep; give one")
    limits = dict(_named(text, "--budget") for text in budget)
    check_budget(limits, ranking)
    graph, dataset = load_graph(model, [sample(text) for text in inputs or ()]), _dataset(data)
    head = dataset.train.head(calibration) if dataset else None
    x = head.x if head else np.zeros(0, np.float32)
    pruner = Pruner(graph, x, divisor, method, labels=head.y if head else None)
    _write(pruner.plan(allocate(pruner, limits, ranking)), graph, dataset, calibration, out)


def quantize(
    model: Model,
    out: Out,
    data: Data,
    weights: Annotated[int, typer.Option(help="Bits of weights; 0 leaves them as they are.")] = 8,
    activations: Annotated[int, typer.Option(help="Bits of activations; 0: weights only.")] = 8,
    method: Annotated[str, typer.Option(help="Calibration: minmax, percentile, entropy or mse.")] = "minmax",
    rounding: Annotated[str, typer.Option(help="nearest or gptq.")] = "nearest",
    block: Annotated[int, typer.Option(min=0, help="Columns of a weight that share a scale; 0: all.")] = 0,
    strategy: StrategyFile = None,
    calibration: Calibration = 1000,
    inputs: Inputs = None,
) -> None:
    """Quantize weights and activations after training, with ranges from the data."""
    from msc_core.tools.quantize.precision import Precision
    from msc_core.tools.strategy import Rule

    precision = Precision(weights, activations, method, block=block, rounding=rounding)
    _by_rules(model, inputs, Rule(quantize=precision), strategy, data, calibration, out)


def apply(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file.")],
    model: Model,
    out: Out,
    data: Data = "",
    calibration: Calibration = 1000,
    inputs: Inputs = None,
) -> None:
    """Make the network that a plan describes; with data, restore accuracy without training."""
    from msc_core.plan import Plan
    from msc_gym.loading import load_graph, sample

    graph = load_graph(model, [sample(text) for text in inputs or ()])
    _write(Plan.load(plan), graph, _dataset(data), calibration, out)


def finetune(
    model: Model,
    out: Out,
    data: Data,
    teacher: Annotated[
        str, typer.Option(help="The original, to learn from; written like MODEL.", show_default=False)
    ] = "",
    plan: Annotated[
        Path | None, typer.Option(help="What pruned the original, for --feature.", show_default=False)
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(help="A tensor to hold near the teacher's, as NAME or NAME=WEIGHT; may be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps.")] = 800,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.02,
    batch: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 128,
    distill: Annotated[float, typer.Option(help="Share of the distillation loss, with a teacher.")] = 0.7,
    optimizer: Annotated[str, typer.Option(help="sgd, adam or adamw.")] = "sgd",
    schedule: Annotated[str, typer.Option(help="one_cycle, cosine, step or constant.")] = "one_cycle",
    patience: Annotated[int, typer.Option(min=0, help="Looks without a new best before the end; 0: never.")] = 0,
    augment: Annotated[bool, typer.Option(help="Flip and shift images.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of batches and augmentation.")] = 0,
    inputs: Inputs = None,
) -> None:
    """Train a compressed network, with its original as a teacher; the same command again continues."""
    from msc_core.plan import Plan
    from msc_core.tools.finetune import Recipe, finetune
    from msc_gym.display import display_for
    from msc_gym.loading import load_graph, sample

    features = dict(_named(text, "--feature") for text in feature or ())
    recipe = Recipe(
        steps, lr, batch, distill=distill, features=features, optimizer=optimizer, schedule=schedule,
        patience=patience, augment=augment, seed=seed,
    )  # fmt: skip
    samples, dataset = [sample(text) for text in inputs or ()], datasets.load(data)
    graph = load_graph(model, samples)
    original = load_graph(teacher, samples) if teacher else None
    pruned = Plan.load(plan) if plan else None
    with display_for(sys.stdout) as display:
        display.stage("finetune")

        def report(done: int, total: int, loss: float) -> None:
            display.step("finetune", done, total, f"loss {loss:.3f}")

        tuned = finetune(
            graph, dataset.train, recipe, original, report, plan=pruned, validation=dataset.validation,
            checkpoint=out / CHECKPOINT,
        )  # fmt: skip
    tuned.save(out / GRAPH_FOLDER)
    (out / CHECKPOINT).unlink(missing_ok=True)
    _compare(graph, tuned, dataset)
    print(f"{out / GRAPH_FOLDER} written")


def track(
    reference: Model,
    candidate: Annotated[str, typer.Argument(help="What became of it, written like the reference.")],
    data: Data = "",
    samples: Annotated[int, typer.Option(min=1, help="How many inputs to compare on.")] = 16,
    target: Annotated[str, typer.Option(help="Where the candidate runs.")] = "torch",
    reference_target: Annotated[str, typer.Option(help="Where the reference runs.")] = "torch",
    plan: Annotated[Path | None, typer.Option(help="What pruned the reference.", show_default=False)] = None,
    tensor: Annotated[
        list[str] | None, typer.Option(help="Only tensors with names like this; may be repeated.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Error that a layer may add, relative to its output.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page here.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    inputs: Inputs = None,
) -> None:
    """Compare two stages, or two engines, tensor by tensor, and point at the first layer that went wrong."""
    from msc_core.ir import write_atomic
    from msc_core.plan import Plan
    from msc_core.tools.track import track
    from msc_gym.loading import load_graph, sample
    from msc_gym.translate import random_feeds

    described = [sample(text) for text in inputs or ()]
    original, changed = (load_graph(model, described) for model in (reference, candidate))
    feeds = datasets.load(data).validation.x[:samples] if data else random_feeds(original, seed=0)[0]
    pruned = Plan.load(plan) if plan else None
    found = track(
        original, changed, feeds, target, reference_target, plan=pruned, tensors=tensor or ("*",), threshold=threshold
    )
    print(found.to_json() if as_json else found.to_text(), end="")
    if html is not None:
        write_atomic(html, found.to_html().encode())
    if found.first is not None:
        raise typer.Exit(1)


def _named(text: str, option: str) -> tuple[str, float]:
    """`NAME=NUMBER`."""
    name, equals, number = text.rpartition("=")
    try:
        return (name, float(number)) if equals else (text, 1.0)
    except ValueError:
        raise MscError(f"{option} {text}: expected NAME=NUMBER") from None


def _by_rules(
    model: str, inputs: list[str] | None, rule: Rule, strategy: Path | None, data: str, calibration: int, out: Path
) -> None:
    from msc_core.tools import resolve
    from msc_core.tools.strategy import Strategy
    from msc_core.tools.strategy_files import load_strategy
    from msc_gym.loading import load_graph, sample

    rules = load_strategy(strategy) if strategy else Strategy((rule,))
    graph, dataset = load_graph(model, [sample(text) for text in inputs or ()]), _dataset(data)
    plan = resolve(rules, graph, dataset.train.x[:calibration] if dataset else None)
    _write(plan, graph, dataset, calibration, out)


def _dataset(name: str) -> Dataset | None:
    return datasets.load(name) if name else None


def _write(plan: Plan, graph: MSCGraph, dataset: Dataset | None, calibration: int, out: Path) -> None:
    """Apply, save, and say what it cost and what it brought."""
    from msc_core.tools import apply

    small = apply(plan, graph, dataset.train.x[:calibration] if dataset else None)
    plan.save(out / PLAN_FILE)
    small.save(out / GRAPH_FOLDER)
    _compare(graph, small, dataset)
    print(f"{out / PLAN_FILE} and {out / GRAPH_FOLDER} written")


def _compare(before: MSCGraph, after: MSCGraph, dataset: Dataset | None) -> None:
    from msc_core.cost import cost
    from msc_gym.report import text

    costs = cost(before), cost(after)
    for name, show in (("macs", text.count), ("params", text.count), ("bytes", text.size)):
        old, new = (getattr(c, name) for c in costs)
        print(f"{name:<10}{show(old):>10} -> {show(new):<10}{new / old:.1%}")
    if dataset is not None:
        old, new = (_accuracy(graph, dataset) for graph in (before, after))
        print(f"{'accuracy':<10}{old:>10.2%} -> {new:<10.2%}of {len(dataset.validation)} validation samples")


def _accuracy(graph: MSCGraph, dataset: Dataset) -> float:
    from msc_core.backends import build, cores, score

    if len(graph.inputs) != 1:
        raise MscError(f"graph {graph.name!r} has {len(graph.inputs)} inputs; accuracy is counted for one")
    with build(graph, "onnxruntime", threads=cores()) as runner:
        return score(runner, dataset.validation)
