"""Strategy files: our rules as YAML or JSON, or the tool dictionaries of TVM's Multi-System Compiler (MSC).

An MSC tool is `{"tool_type": ..., "tool_config": {"strategys": [{"methods": {slot: method}, selector: [...]}, ...]}}`.
There the more specific selector won (tensor, then operator name, then operator type, then none); here the last rule
does, so the rules come out in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msc_core.errors import InvalidPlan, nearest
from msc_core.reading import read
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.strategy import OUTPUTS, Distill, Prune, Rule, Strategy

SELECTORS = {"": 0, "op_types": 1, "op_names": 2, "marks": 2, "tensor_names": 3, "tensor_ids": 4}  # by specificity
FIELDS = {"op_types": "ops", "op_names": "names", "tensor_names": "tensors", "tensor_ids": "names"}
RANGES = {"calibrate_maxmin": "minmax", "calibrate_kl_divergence": "entropy",
          "gather_maxmin": "minmax", "gather_kl_divergence": "entropy"}  # fmt: skip
FUSED = {"msc.conv1d_bias": "conv1d", "msc.conv2d_bias": "conv2d", "msc.linear_bias": "linear"}  # with us, one row
CONSUMER = "-c-"  # between tensor and reader in a tensor id
Target = tuple[str, tuple[str, ...]]  # a selector and its values


def load_strategy(path: str | Path) -> Strategy:
    """Read a strategy file. Raises `InvalidPlan`, naming the file and the place in it."""
    import yaml

    try:
        return read_strategy(yaml.safe_load(Path(path).read_text("utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, InvalidPlan) as error:
        raise InvalidPlan(f"strategy {path}: {' '.join(str(error).split())}") from error


def read_strategy(data: Any) -> Strategy:
    """From plain data: `{"rules": [...], "marks": {...}}`, or MSC's list of tools."""
    return from_msc(data) if isinstance(data, list) else read(Strategy, data, InvalidPlan)


def from_msc(tools: list[Any]) -> Strategy:
    """The rules of all tools. Raises `InvalidPlan` for a tool, selector, slot or method that MSC did not have."""
    rules: list[tuple[int, Rule]] = []
    for number, tool in enumerate(tools):
        kind, config = (
            _field(tool, "tool_type", str, f"tool {number}"),
            _field(tool, "tool_config", dict, f"tool {number}"),
        )
        if kind not in TOOLS:
            raise InvalidPlan(f"tool {number}: unknown tool_type {kind!r}{nearest(kind, TOOLS)}")
        settings: dict[Target, Any] = {}
        for at, entry in enumerate(_field(config, "strategys", list, f"tool {number}")):
            where = f"tool {number} ({kind}), strategy {at}"
            methods = {
                slot: _method(m, f"{where}, {slot}") for slot, m in _field(entry, "methods", dict, where).items()
            }
            for target in _targets(entry, where):
                settings[target] = TOOLS[kind](methods, settings.get(target), where)
        action = ACTIONS[kind]
        rules += [(SELECTORS[target[0]], _rule(target, action, value)) for target, value in settings.items()]
    return Strategy(tuple(rule for _, rule in sorted(rules, key=lambda pair: pair[0])))


def _targets(entry: Mapping[str, Any], where: str) -> list[Target]:
    for key in entry:
        if key not in (*SELECTORS, "methods", "stages"):
            raise InvalidPlan(f"{where}: unknown key {key!r}{nearest(key, [*SELECTORS, 'methods', 'stages'])}")
    return [(key, tuple(_field(entry, key, list, where))) for key in SELECTORS if key in entry] or [("", ())]


def _rule(target: Target, action: str, value: Any) -> Rule:
    selector, values = target
    if selector == "op_types":
        values = tuple(FUSED.get(v, v) for v in values)
    if selector == "tensor_ids":
        values = tuple(v.rpartition(CONSUMER)[2] for v in values)
    if selector == "marks":  # MSC's loss is marked on what the network returns
        values = tuple(OUTPUTS if v == "loss" else v for v in values)
    selected: dict[str, Any] = {FIELDS.get(selector, selector): values} if selector else {}
    return Rule(**selected, **{action: value})


def _method(method: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(method, str):
        return method, {}
    return _field(method, "method_name", str, where), {k: v for k, v in method.items() if k != "method_name"}


def _prune(methods: Mapping[str, Any], before: Any, where: str) -> Prune:
    slot = next((s for s in ("weights", "weight", "output") if s in methods), None)
    if slot is None:
        raise InvalidPlan(
            f"{where}: a pruner's methods are for weights or output; found {', '.join(methods) or 'none'}"
        )
    name, options = methods[slot]
    _known(name, ("per_channel",), where)
    divisor = _option(options, "stride", 8, int, where)
    return Prune(float(_option(options, "density", None, (int, float), where)), "l1", divisor)


def _quantize(methods: Mapping[str, Any], before: Any, where: str) -> Precision:
    found: Precision = before or Precision()
    for slot, (name, options) in methods.items():
        weights = slot not in ("input", "output", "tensor")
        if name == "gather_max_per_channel" or (name.startswith("gather_") and weights):
            found = replace(found, per_channel=name == "gather_max_per_channel")
        elif name in RANGES:
            found = replace(found, method=RANGES[name])
        elif name in ("quantize_normal", "dequantize_normal"):
            bits = max(0, _option(options, "nbits", 8, int, where))
            changes = {"weights": bits} if weights else {"activations": bits} if slot == "input" else {}
            found = replace(found, **({"weights": bits, "activations": bits} if slot == "tensor" else changes))
        else:
            _known(name, (*RANGES, "gather_max_per_channel", "quantize_normal", "dequantize_normal"), where)
    return found


def _distill(methods: Mapping[str, Any], before: Any, where: str) -> Distill:
    losses = {"loss_lp_norm": "lp", "loss_kl_divergence": "kl"}
    (name, options), *_ = methods.values() or [("", {})]
    _known(name, losses, where)
    power = float(_option(options, "power", 2, (int, float), where))
    return Distill(
        losses[name], power=power, temperature=float(_option(options, "temperature", 1, (int, float), where))
    )


def _track(methods: Mapping[str, Any], before: Any, where: str) -> bool:
    for name, _ in methods.values():
        _known(name, ("save_compared",), where)
    return True


def _known(name: str, names: Any, where: str) -> None:
    if name not in names:
        raise InvalidPlan(f"{where}: unknown method {name!r}{nearest(name, names)}")


def _option(options: Mapping[str, Any], key: str, default: Any, kind: Any, where: str) -> Any:
    value = options.get(key, default)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise InvalidPlan(f"{where}: {key} must be a number; found {value!r}")
    return value


def _field(data: Any, key: str, kind: type[Any], where: str) -> Any:
    value = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(value, kind) or (kind is list and not all(isinstance(v, (str, dict)) for v in value)):
        raise InvalidPlan(f"{where}: expected {key!r}, a {kind.__name__}; found {str(value or data)[:60]}")
    return value


TOOLS: Mapping[str, Any] = {"pruner": _prune, "quantizer": _quantize, "distiller": _distill, "tracker": _track}
ACTIONS = {"pruner": "prune", "quantizer": "quantize", "distiller": "distill", "tracker": "track"}
