"""The main job: every agent searches, the best plan is applied, fine-tuned, compiled, exported and reported."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msc_core.data import SPLITS
from msc_core.ir import MSCGraph, write_atomic
from msc_core.measure import Latency
from msc_core.pipeline import Config, Manager, Report, Row
from msc_core.plan import Plan
from msc_core.tools.finetune import Recipe
from msc_gym.config import JobConfig
from msc_gym.display import Display, PlainDisplay
from msc_gym.engine import Evaluator, Measurement
from msc_gym.envs import parse_reward, pay
from msc_gym.report import write_report
from msc_gym.report.result import RESULT_FILE, SCHEMA
from msc_gym.runs import git_state, job_evaluator, job_search, record
from msc_gym.search import SearchResult, trial_dict
from msc_gym.task import CompressionTask

REPORT_FILE = "report.html"


def compress(job: JobConfig, model: Any = None, display: Display | None = None) -> dict[str, Any]:
    """Run a job and leave its artefacts in `job.out`; returns what `result.json` holds.

    `model` (a graph or a `torch.nn.Module`) replaces the one that the job names. The same call after an interruption
    goes on with the trials it finds in the run folder. The test split is used once, after all choices are made.
    Raises `MscError`, before any long work where it can be known by then.
    """
    display = display or PlainDisplay()
    task = CompressionTask.from_job(job, model)
    out = Path(job.out)
    out.mkdir(parents=True, exist_ok=True)
    samples = len(task.dataset.train)
    recipe = job.finetune.recipe(samples, job.search.seed) if job.finetune else Recipe(steps=0)
    with job_evaluator(job, task) as evaluator:
        planner = SearchPlanner(task, job, evaluator, display)
        config = Config(
            data=task.dataset, planner=planner, out=out, target=job.target, finetune=recipe,
            export=tuple(job.export), pruner=task.pruner,
        )  # fmt: skip
        report = Manager(task.graph, config, _listener(display)).run()
        display.stage("test", "agents' plans on the test split")
        plans = [finalist.plan for finalist in planner.finalists.values()]
        tests = evaluator.evaluate(plans, split="test", latency=False)
        record(out, job, evaluator, list(planner.searches.values()))
    result = _result(job, task, planner, report, dict(zip(planner.finalists, tests, strict=True)), recipe)
    write_atomic(out / RESULT_FILE, (json.dumps(result, indent=1) + "\n").encode())
    write_report(result, out / REPORT_FILE)
    display.done(result)
    return result


@dataclasses.dataclass(frozen=True)
class Finalist:
    """An agent's best plan, measured on the whole validation split."""

    plan: Plan
    choices: Mapping[str, int]
    measurement: Measurement
    seconds: float


class SearchPlanner:
    """A `msc_core.pipeline.Planner` that lets every agent of the job search and takes the best of their best plans."""

    def __init__(self, task: CompressionTask, job: JobConfig, evaluator: Evaluator, display: Display) -> None:
        self.task, self.job, self.evaluator, self.display = task, job, evaluator, display
        self.searches: dict[str, SearchResult] = {}
        self.finalists: dict[str, Finalist] = {}
        self.winner = ""

    def plan(self, graph: MSCGraph, config: Config) -> Plan:
        """Search with each agent in turn; the winner is decided on the whole validation split."""
        settings = self.job.search
        reward = parse_reward(settings.reward, settings.latency_limit)
        for agent in settings.agents:
            self.display.stage("search", agent)
            started = time.perf_counter()
            found = job_search(self.job, agent, self.evaluator, self.display.trial)
            (measured,) = self.evaluator.evaluate([found.best.plan], full=True)
            self.searches[agent] = found
            seconds = time.perf_counter() - started
            self.finalists[agent] = Finalist(found.best.plan, found.best.choices, measured, seconds)
        self.winner = max(self.finalists, key=lambda agent: pay(reward, self.finalists[agent].measurement))
        return self.finalists[self.winner].plan


def _listener(display: Display) -> Any:
    def listen(stage: str, done: int, total: int, text: str) -> None:
        if total:
            display.step(stage, done, total, text)
        else:
            display.stage(stage, text)

    return listen


def _result(
    job: JobConfig,
    task: CompressionTask,
    planner: SearchPlanner,
    report: Report,
    tests: Mapping[str, Measurement],
    recipe: Recipe,
) -> dict[str, Any]:
    """What `result.json` holds; `msc_gym.report.result` describes it."""
    winner = planner.finalists[planner.winner]
    reached = {"agent": planner.winner, "plan": report.plan.hash, "kept": dict(winner.choices)}
    any_measurement = winner.measurement
    return {
        "schema": SCHEMA,
        "name": Path(job.out).name,
        "task": _task(task),
        "baseline": _row(report.baseline, job.target),
        "best": _row(report.best, job.target)
        | reached
        | {"finetune": {"before": report.before, **dataclasses.asdict(recipe)}},
        "agents": {
            agent: {
                **_measured(finalist.measurement, tests[agent]),
                "kept": dict(finalist.choices),
                "trials": len(planner.searches[agent].trials),
                "seconds": finalist.seconds,
                "plan": finalist.plan.hash,
            }
            for agent, finalist in planner.finalists.items()
        },
        "trials": [trial_dict(trial) for found in planner.searches.values() for trial in found.trials],
        "exports": {name: dataclasses.asdict(artefact) for name, artefact in report.artefacts.items()},
        "environment": {
            "device": any_measurement.device,
            "versions": dict(any_measurement.versions),
            "seed": job.search.seed,
            "git": git_state(),
        },
        "seconds": dict(report.seconds),
    }


def _task(task: CompressionTask) -> dict[str, Any]:
    sizes = {name: len(getattr(task.dataset, name)) for name in SPLITS}
    return {
        "model": task.graph.name,
        "data": task.dataset.name,
        "target": str(task.target),
        "budget": dict(task.budget),
        "samples": {**sizes, "calibration": len(task.calibration_inputs), "search": task.validation},
        "groups": [
            {"name": g.name, "size": g.size, "divisor": g.divisor, "nodes": list(g.nodes)} for g in task.groups
        ],
    }  # fmt: skip


def _row(row: Row, target: str) -> dict[str, Any]:
    named: dict[str, Any] = {"accuracy": row.accuracy, "test_accuracy": row.test_accuracy}
    named |= dataclasses.asdict(row.cost)
    for prefix, latency in (("latency", row.latency.get(target)), ("tvm", row.latency.get("tvm"))):
        named |= _latency(prefix, latency)
    return named


def _latency(prefix: str, latency: Latency | None) -> dict[str, Any]:
    ratio, interval = (None, None) if latency is None else (latency.ratio, list(latency.interval))
    return {f"{prefix}_ratio": ratio, f"{prefix}_interval": interval}


def _measured(validation: Measurement, test: Measurement) -> dict[str, Any]:
    names = ("accuracy", "macs", "params", "bytes", "latency_ratio", "latency_interval")
    return {"test_accuracy": test.accuracy, **{name: getattr(validation, name) for name in names}}
