"""What arithmetic explains, and in what two layers of one name differ."""

from __future__ import annotations

import numpy as np

from msc_core.ir import Array, MSCGraph, Node
from msc_core.ops import bind
from msc_core.rewrite import drop_identities, fold_batch_norm

# The jump that is normal for what the candidate has; the largest that applies counts. "rounding": values halfway
# between two integers, which engines round apart; "few bits": weights of 5 bits or less.
TOLERANCE = {
    "": 1e-3, "float16": 1e-2, "rounding": 2e-2, "bfloat16": 5e-2, "integers": 0.05, "few bits": 0.3,
    "fewer channels": 0.5,
}  # fmt: skip
FEW = 15  # the largest integer of 5 bits


def tolerance(reference: MSCGraph, candidate: MSCGraph) -> float:
    """The threshold for a comparison of two graphs, from `TOLERANCE`."""
    before = {node.name for node in reference.nodes}
    new = [node for node in candidate.nodes if node.name not in before]
    found = {"", *("rounding" for node in candidate.nodes if node.op == "quantize")}
    found |= {str(node.attrs.get("dtype", "")) for node in new if node.op == "cast"} & TOLERANCE.keys()
    for node in new:
        if node.op in ("quantize", "dequantize"):
            found.add("integers")
            weight = candidate.weights.get(node.inputs[0])
            if weight is not None and np.abs(weight.astype(np.int64)).max(initial=0) <= FEW:
                found.add("few bits")
    if any(w.shape != candidate.weights[n].shape for n, w in reference.weights.items() if n in candidate.weights):
        found.add("fewer channels")
    return max(TOLERANCE[name] for name in found)


def causes(reference: MSCGraph, candidate: MSCGraph, name: str) -> tuple[str, ...]:
    """The attributes and weights in which the candidate's node differs from the reference's of that name."""
    present = {n.name for n in candidate.nodes}
    if any(n.name not in present for n in reference.nodes):
        reference = drop_identities(fold_batch_norm(reference))
    node = candidate.node(name)
    if name not in {n.name for n in reference.nodes}:
        return (f"{node.op} {name!r} is in the candidate only{_range(node, candidate)}",)
    other = reference.node(name)
    if node.op != other.op:
        return (f"{node.op} instead of {other.op}",)
    found = [f"{attr} is {new}, not {old}" for attr, old, new in _attributes(other, node, reference, candidate)]
    for slot, (old, new) in enumerate(zip(other.inputs, node.inputs, strict=False)):
        if old in reference.weights and (text := _weight(reference.weights[old], _stored(candidate, new))):
            found.append(f"weight {old!r} (input {slot}) {text}")
        elif old != new and old not in reference.weights and new in reference.tensors:
            found.append(f"input {slot} is {new!r}, not {old!r}")
    return tuple(found)


def _range(node: Node, graph: MSCGraph) -> str:
    """What a dequantize can give at most."""
    scale = graph.weights.get(node.inputs[1]) if node.op == "dequantize" else None
    dtype = graph.tensors[node.inputs[0]].dtype
    if scale is None or scale.size != 1:
        return ""
    zero = graph.weights.get(node.inputs[2]) if len(node.inputs) > 2 else None
    point = 0 if zero is None else int(zero.reshape(-1)[0])
    low, high = ((limit - point) * float(scale.reshape(-1)[0]) for limit in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    return f": {dtype} at scale {float(scale.reshape(-1)[0]):.3g} holds {low:.3g} to {high:.3g}"


def _attributes(old: Node, new: Node, reference: MSCGraph, candidate: MSCGraph) -> list[tuple[str, object, object]]:
    """(name, value in the reference, value in the candidate), defaults included."""
    before, after = bind(old, reference.tensors), bind(new, candidate.tensors)
    return [(name, before[name], after[name]) for name in before.op.attrs if before[name] != after[name]]


def _stored(graph: MSCGraph, name: str) -> Array | None:
    """A weight's values, also of one that is kept in integers and dequantized on the way to its layer."""
    if name in graph.weights:
        return graph.weights[name]
    from msc_core.backends import build
    from msc_core.tools.track.match import cut

    part = cut(graph, (name,))
    if any(source in graph.inputs for node in part.nodes for source in node.inputs):
        return None
    with build(part.replace(inputs=()), "torch") as runner:
        return runner.run({})[name]


def _weight(old: Array, new: Array | None) -> str:
    """How two weights differ, empty if they do not."""
    if new is None:
        return "is computed"
    if old.shape != new.shape:
        return f"has shape {list(new.shape)}, not {list(old.shape)}"
    difference = np.abs(new.astype(np.float64) - old.astype(np.float64))
    if not np.isfinite(difference).all():
        return "is not finite"
    changed = int((difference > 0).sum())
    if not changed:
        return ""
    return f"differs in {changed} of {old.size} elements, by up to {difference.max():.3g} of {np.abs(old).max():.3g}"
