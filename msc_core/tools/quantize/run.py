"""Run a graph and look at tensors inside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msc_core.ir import Array, MSCGraph
from msc_core.tools.calibration import Inputs, batches


def outputs(graph: MSCGraph, names: Sequence[str], x: Inputs) -> Iterator[dict[str, Array]]:
    """These tensors of the graph for calibration data, batch by batch; raises as `calibration.batches` does."""
    feeds = batches(graph, x)
    import torch

    from msc_core.codegen.torch import to_torch

    module = to_torch(graph.replace(outputs=tuple(names))).eval().to(next(iter(feeds[0].values())).device)
    with torch.no_grad():
        for feed in feeds:
            found = module(**feed)
            values = found if isinstance(found, tuple) else (found,)
            yield {name: value.cpu().numpy() for name, value in zip(names, values, strict=True)}


def evaluate(graph: MSCGraph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a graph, or of a part of one whose inputs are what other parts made."""
    import torch

    from msc_core.codegen.torch import to_torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = to_torch(graph).eval().to(device)
    with torch.no_grad():
        found = module(**{name: torch.from_numpy(array).to(device) for name, array in feeds.items()})
    values = found if isinstance(found, tuple) else (found,)
    return {name: value.cpu().numpy() for name, value in zip(graph.outputs, values, strict=True)}
