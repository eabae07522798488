"""A `result.json` as a run of ResNet-20 writes it, made up with a seed: for tests of what reads results."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {
    "stem.body.conv": 16, "blocks.0.body1.conv": 16, "blocks.1.body1.conv": 16, "blocks.2.body1.conv": 16,
    "blocks.3.body1.conv": 32, "blocks.3.body2.conv": 32, "blocks.4.body1.conv": 32, "blocks.5.body1.conv": 32,
    "blocks.6.body1.conv": 64, "blocks.6.body2.conv": 64, "blocks.7.body1.conv": 64, "blocks.8.body1.conv": 64,
}  # fmt: skip
QUALITY = {"amc": 0.912, "uniform": 0.897, "random": 0.885}
FULL = {"macs": 31_021_440, "params": 272_474, "bytes": 1_096_536}


def synthetic_result(
    trials: int = 60, agents: tuple[str, ...] = tuple(QUALITY), latency: bool = True
) -> dict[str, Any]:
    """A fresh one each time; without `latency` every ratio is null."""
    rng = np.random.default_rng(0)
    tried = {agent: _trials(agent, 1 if agent == "uniform" else trials, rng, latency) for agent in agents}
    rows = {agent: _agent(found) for agent, found in tried.items()}
    best = dict(rows[agents[0]])
    baseline = _row(0.9374, 1.0, latency) | {"tvm_ratio": 1.0, "tvm_interval": [0.99, 1.01]}
    best |= {
        "agent": agents[0],
        "accuracy": 0.9338,
        "test_accuracy": 0.9312,
        "finetune": {"steps": 800, "before": 0.91},
    }
    best |= {"tvm_ratio": 0.581 if latency else None, "tvm_interval": [0.57, 0.592] if latency else None}
    return {
        "schema": 1,
        "name": "quickstart",
        "task": {
            "model": "resnet20",
            "data": "fashion_mnist",
            "target": "onnxruntime",
            "budget": {"macs": 0.5},
            "samples": {"validation": 5000, "test": 10000, "train": 55000, "calibration": 1000},
            "groups": [{"name": n, "size": s, "divisor": 8, "nodes": [n, f"{n}.next"]} for n, s in SIZES.items()],
        },
        "baseline": baseline,
        "best": best,
        "agents": rows,
        "trials": [trial for found in tried.values() for trial in found],
        "exports": {
            "torch": {"file": "torch/model.py", "bytes": 12_345, "max_error": 0.0},
            "onnx": {"file": "onnx/model.onnx", "bytes": 561_234, "max_error": 3.1e-7},
            "tvm": {"file": "tvm/lib.so", "bytes": 1_123_456, "max_error": 8.8e-7},
        },
        "environment": {
            "device": "2 x some CPU",
            "versions": {"python": "3.11.7", "torch": "2.13.0", "onnxruntime": "1.32.0", "tvm": "0.27.0"},
            "seed": 0,
            "git": "0123abc",
        },
        "seconds": {"baseline": 12.1, "search": 312.0, "finetune": 91.5, "export": 33.0},
    }


def _row(accuracy: float, share: float, latency: bool) -> dict[str, Any]:
    ratio = round(share**0.8, 4)
    return {
        "accuracy": round(accuracy, 4),
        "test_accuracy": round(accuracy - 0.002, 4),
        **{key: round(value * share) for key, value in FULL.items()},
        "latency_ratio": ratio if latency else None,
        "latency_interval": [ratio - 0.012, ratio + 0.013] if latency else None,
    }


def _trials(agent: str, number: int, rng: np.random.Generator, latency: bool) -> list[dict[str, Any]]:
    found = []
    for index in range(number):
        learned = index / number if agent == "amc" else 0.0
        share = 0.5 - abs(rng.normal(0, 0.04 * (1 - learned) + 0.002))
        loss = abs(rng.normal(0, 0.035)) * (1 - 0.8 * learned)
        kept = {n: int(rng.integers(1, s // 8 + 1)) * 8 for n, s in SIZES.items()}
        row = _row(QUALITY[agent] - loss - 0.3 * (0.5 - share), share, latency)
        row.pop("test_accuracy")
        trial = {"agent": agent, "index": index, **row, "reward": row["accuracy"] - 1, "kept": kept, "error": ""}
        if agent == "random" and index % 29 == 3:
            trial |= {"accuracy": 0.0, "latency_ratio": None, "latency_interval": None, "kept": None}
            trial["error"] = "DeadlineExceeded: build ran past 60 s"
        found.append(trial)
    return found


def _agent(trials: list[dict[str, Any]]) -> dict[str, Any]:
    best = max(trials, key=lambda t: t["accuracy"])
    row = {k: best[k] for k in ("accuracy", "macs", "params", "bytes", "latency_ratio", "latency_interval", "kept")}
    return row | {"test_accuracy": best["accuracy"] - 0.003, "trials": len(trials), "seconds": 71.0, "plan": "ab" * 8}
