"""Run two graphs on the same inputs, each on a back end of its own, and compare what they compute on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from msc_core import dims
from msc_core.backends import Target, build
from msc_core.errors import InvalidPlan, MscError
from msc_core.exchange import numpy_dtype
from msc_core.infer import bind_symbols
from msc_core.ir import Array, MSCGraph
from msc_core.plan import Plan
from msc_core.tools.calibration import Inputs
from msc_core.tools.survivors import select, selected_shape, survivors
from msc_core.tools.track.causes import causes, tolerance
from msc_core.tools.track.errors import Sums
from msc_core.tools.track.match import ancestors, exposed, pairs

Feeds = dict[str, Array]

GROWTH = 2.0  # a layer also has to multiply the error that it was given: some amplify what they read
MEMORY = 256 * 2**20


@dataclass(frozen=True)
class Difference:
    """A tensor of the candidate against that of the reference.

    `error` is the root mean square of the difference in units of the reference's, `jump` what it is above the largest
    `error` of the compared tensors that this one is computed from. `absolute` and `relative` are the largest difference
    and its ratio to the largest reference. `sqnr` is in dB. `wrong` says that the jump is above the threshold.
    """

    tensor: str
    reference: str
    node: str
    op: str
    shape: tuple[int, ...]
    absolute: float = math.nan
    relative: float = math.nan
    error: float = math.nan
    cosine: float = math.nan
    sqnr: float = math.nan
    jump: float = math.nan
    wrong: bool = False
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """What `track` found, in the order of computation. `causes` says in what the first wrong layer differs."""

    reference: str
    candidate: str
    samples: int
    threshold: float
    rows: tuple[Difference, ...]
    causes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first layer that went wrong."""
        return next((row for row in self.rows if row.wrong), None)

    def to_text(self) -> str:
        """A table."""
        from msc_core.tools.track.report import to_text

        return to_text(self)

    def to_json(self) -> str:
        """The fields as JSON; numbers that JSON lacks are null."""
        from msc_core.tools.track.report import to_json

        return to_json(self)

    def to_html(self) -> str:
        """A page that needs nothing else."""
        from msc_core.tools.track.report import to_html

        return to_html(self)


def track(
    reference: MSCGraph,
    candidate: MSCGraph,
    inputs: Inputs,
    target: str | Target = "torch",
    reference_target: str | Target = "torch",
    *,
    plan: Plan | None = None,
    tensors: Iterable[str] = ("*",),
    threshold: float | None = None,
    batch: int = 16,
    memory: int = MEMORY,
    threads: int = 1,
) -> Comparison:
    """Compare the candidate on `target` with the reference on `reference_target`, tensor by tensor.

    Intermediate tensors become outputs of both graphs, so an engine does not fuse across those that are compared.
    - `inputs`: (n, ...) for a graph of one input, or {input: array}; taken `batch` samples at a time.
    - `plan`: what pruned the candidate: then tensors are compared on the channels that it kept.
    - `tensors`: globs for the reference's names of what is compared.
    - `threshold`: the jump from which a layer is wrong; `None` for what its arithmetic explains (`causes.TOLERANCE`).
    - `memory`: bytes of tensors that each side holds at a time; more tensors take more runs.
    """
    feeds = _feeds(reference, candidate, inputs)
    matched = pairs(reference, candidate, tensors)
    if plan is not None and plan.graph != reference.fingerprint:
        raise InvalidPlan(f"the plan is for graph {plan.graph[:12]}, but the reference is {reference.fingerprint[:12]}")
    kept = survivors(reference, plan.prune if plan is not None else {}, matched.values())
    limit = tolerance(reference, candidate) if threshold is None else threshold
    batches = list(_batches(candidate, feeds, batch))
    sizes = _sizes(candidate, batches[0])
    bound = [bind_symbols(graph, **sizes) for graph in (reference, candidate)]
    shapes = {c: selected_shape(bound[0].tensors[r].shape, kept[r]) for c, r in matched.items()}
    same = {c: r for c, r in matched.items() if shapes[c] == bound[1].tensors[c].shape}
    sums = {name: Sums() for name in same}
    for chunk in _chunks(bound, same, memory):
        for expected, found in _outputs(bound, (reference_target, target), chunk, batches, threads):
            for name, source in chunk.items():
                sums[name].add(select(expected[source], kept[source]), found[name])
    unexplained = plan is not None or _same_weights(reference, candidate)
    rows = _judge(bound[1], matched, sums, shapes, limit, unexplained)
    first = next((row for row in rows if row.wrong), None)
    names = (f"{reference.name} on {reference_target}", f"{candidate.name} on {target}")
    count = sum(len(next(iter(part.values()))) for part in batches)
    return Comparison(*names, count, limit, rows, causes(reference, candidate, first.node) if first else ())


def _feeds(reference: MSCGraph, candidate: MSCGraph, inputs: Inputs) -> Feeds:
    """The inputs by name, checked."""
    if reference.inputs != candidate.inputs:
        raise MscError(f"the graphs have different inputs: {list(reference.inputs)} and {list(candidate.inputs)}")
    if not isinstance(inputs, Mapping):
        if len(candidate.inputs) != 1:
            raise MscError(f"the graphs have the inputs {list(candidate.inputs)}: pass a mapping from their names")
        inputs = {candidate.inputs[0]: inputs}
    if missing := set(candidate.inputs) - inputs.keys():
        raise MscError(f"expected the inputs {list(candidate.inputs)}; {missing.pop()!r} is missing")
    for name in candidate.inputs:
        if inputs[name].size == 0:
            raise MscError(f"input {name!r} is empty: {list(inputs[name].shape)}")
        if inputs[name].dtype.kind in "fc" and not np.isfinite(inputs[name]).all():
            raise MscError(f"input {name!r} is not finite")
    return {name: np.asarray(inputs[name]) for name in candidate.inputs}


def _batches(graph: MSCGraph, feeds: Feeds, batch: int) -> Iterator[Feeds]:
    """Equal parts along the first axis, as many samples as the graph takes; one part where there is no common axis."""
    leading = {graph.tensors[name].shape[:1] for name in graph.inputs}
    counts = {len(array) for array in feeds.values() if array.ndim}
    if len(leading) != 1 or len(counts) != 1 or leading == {()}:
        yield feeds
        return
    (count,) = counts
    first = leading.pop()[0]
    size = first if isinstance(first, int) else max(d for d in range(1, min(batch, count) + 1) if count % d == 0)
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in feeds.items()}


def _sizes(graph: MSCGraph, feeds: Feeds) -> dict[str, int]:
    """What each symbol of the inputs' shapes is for these feeds."""
    return {
        str(dim): size
        for name in graph.inputs
        for dim, size in zip(graph.tensors[name].shape, feeds[name].shape, strict=False)
        if dims.is_symbol(dim)
    }


def _chunks(graphs: list[MSCGraph], names: Mapping[str, str], memory: int) -> Iterator[dict[str, str]]:
    """Consecutive tensors that fit into `memory` on either side, at least one at a time."""

    def held(graph: MSCGraph, name: str) -> int:
        tensor = graph.tensors[name]
        return math.prod(d for d in tensor.shape if isinstance(d, int)) * numpy_dtype(tensor.dtype).itemsize

    chunk, used = dict[str, str](), 0
    for name, source in names.items():
        size = max(held(graphs[0], source), held(graphs[1], name))
        if chunk and used + size > memory:
            yield chunk
            chunk, used = {}, 0
        chunk[name] = source
        used += size
    if chunk:
        yield chunk


def _outputs(
    graphs: list[MSCGraph],
    targets: tuple[str | Target, str | Target],
    chunk: Mapping[str, str],
    batches: list[Feeds],
    threads: int,
) -> Iterator[tuple[Feeds, Feeds]]:
    """The tensors of a chunk that both graphs compute, batch by batch."""
    computed = [name for name in dict.fromkeys(chunk.values()) if name not in graphs[0].inputs]
    parts = exposed(graphs[0], computed or graphs[0].outputs), exposed(graphs[1], chunk)
    reference, candidate = (build(part, target, threads) for (part, _), target in zip(parts, targets, strict=True))
    with reference, candidate:
        for feeds in batches:
            expected, found = (
                {names[name]: array for name, array in runner.run(feeds).items()}
                for runner, (_, names) in zip((reference, candidate), parts, strict=True)
            )
            yield {**feeds, **expected}, found


def _judge(
    graph: MSCGraph,
    matched: Mapping[str, str],
    sums: Mapping[str, Sums],
    shapes: Mapping[str, tuple[int | str, ...]],
    limit: float,
    unexplained: bool,
) -> tuple[Difference, ...]:
    """A row for each tensor. A shape that differs is wrong if no pruning explains it."""
    before = ancestors(graph, matched)
    rows: dict[str, Difference] = {}
    for node in graph.nodes:
        for name in node.outputs:
            if name not in matched:
                continue
            given = [rows[source] for source in before[name]]
            shape = tuple(d if isinstance(d, int) else -1 for d in graph.tensors[name].shape)
            at = (name, matched[name], node.name, node.op, shape)
            if name in sums:
                rows[name] = _measured(at, sums[name], given, limit)
            else:
                fresh = unexplained and not any(row.note for row in given)
                rows[name] = Difference(*at, wrong=fresh, note=f"shape differs: expected {list(shapes[name])}")
    return tuple(rows.values())


def _measured(
    at: tuple[str, str, str, str, tuple[int, ...]], sums: Sums, given: list[Difference], limit: float
) -> Difference:
    errors = [math.inf if math.isnan(row.error) else row.error for row in given]  # unknown: nothing can be added to it
    error, worst = sums.error, max(errors, default=0.0)
    jump = error - worst if worst < math.inf else 0.0
    wrong = jump > limit and error > GROWTH * worst
    note = "" if sums.finite else "not finite"
    return Difference(*at, sums.largest, sums.relative, error, sums.cosine, sums.sqnr, jump, wrong, note)


def _same_weights(reference: MSCGraph, candidate: MSCGraph) -> bool:
    """Whether no weight has lost positions, so that all shapes have to agree."""
    return all(
        w.shape == candidate.weights[name].shape for name, w in reference.weights.items() if name in candidate.weights
    )
