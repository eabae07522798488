"""The commands that search: search, train, compress, validate, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msc_core.errors import MscError, nearest
from msc_gym.config import JobConfig, SearchConfig, load_job, read_job
from msc_gym.options import JobFile, Trials, Workers

FAILED = 1  # exit code

if TYPE_CHECKING:
    from msc_gym.display import PlainDisplay, RichDisplay
    from msc_gym.search import Progress, SearchResult


def search(
    task: JobFile,
    agent: Annotated[
        list[str] | None, typer.Option(help="Only this agent; may be repeated.", show_default=False)
    ] = None,
    trials: Trials = None,
    store: Annotated[str, typer.Option(help="A database URL, instead of the run folder's.", show_default=False)] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the job's.", show_default=False)] = None,
    workers: Workers = "",
    batch: Annotated[int | None, typer.Option(min=0, help="Plans asked for at once.", show_default=False)] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="accuracy, latency, macs, params, bytes; two or more.", show_default=False),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A folder that train wrote: apply this policy.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, instead of the job's.", show_default=False)] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write scalars into the run folder.")] = False,
) -> None:
    """Run only the search of a job and print its trials; the same command again continues it."""
    from msc_gym.agents import AGENTS
    from msc_gym.runs import job_evaluator, job_search, record
    from msc_gym.task import CompressionTask

    changes = {"trials": trials, "seed": seed, "workers": workers or None, "batch": batch, "objectives": objective}
    job = _with(load_job(task), out=out, **changes)
    agents = ["policy"] if policy else list(agent or job.search.agents)
    if policy:
        job = _with(job, options={"policy": {"path": str(policy)}})
    for name in agents:
        if name not in AGENTS:
            raise MscError(f"--agent: unknown agent {name!r}{nearest(name, AGENTS)}")
    found = []
    with _display() as display, job_evaluator(job, CompressionTask.from_job(job), store) as evaluator:
        for name in agents:
            display.stage("search", name)
            with _scalars(Path(job.out) / "tensorboard" / name if tensorboard else None, display.trial) as progress:
                found.append(job_search(job, name, evaluator, progress))
        record(job.out, job, evaluator, found)
    _print_trials(found)
    print(f"measured on the whole validation split, in {Path(job.out) / 'run.json'}; msc-gym validate {job.out}")


def train(
    tasks: Annotated[list[Path], typer.Argument(metavar="TASK.yaml...", help="Job files; episodes go round them.")],
    out: Annotated[Path, typer.Option(help="Folder for the policy.")],
    agent: Annotated[str, typer.Option(help="One that learns: amc, ppo, td3, sac, ...")] = "ppo",
    episodes: Annotated[int, typer.Option(min=1, help="Of all tasks together.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of the agent.")] = 0,
    store: Annotated[str, typer.Option(help="A database URL, instead of one in the folder.", show_default=False)] = "",
    workers: Workers = "1",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write scalars into the folder.")] = False,
) -> None:
    """Train an agent on one or several tasks and keep its policy; the same command again continues.

    The reward is that of the first job file.
    """
    from msc_gym.envs import parse_reward
    from msc_gym.runs import STORE_FILE
    from msc_gym.task import CompressionTask
    from msc_gym.training import train as run_train

    jobs = [load_job(task) for task in tasks]
    reward = parse_reward(jobs[0].search.reward, jobs[0].search.latency_limit)
    out.mkdir(parents=True, exist_ok=True)
    with _display() as display:
        display.stage("train", agent)
        found = run_train(
            [CompressionTask.from_job(job) for job in jobs], agent, episodes, store or f"sqlite:///{out / STORE_FILE}",
            seed, display.trial, out=out, reward=reward, workers=workers, tensorboard=tensorboard,
        )  # fmt: skip
    for task, measured in zip(found.tasks, found.final, strict=True):
        print(f"{task.graph.name}: the policy reaches {measured.accuracy:.2%} of {measured.samples} validation samples")
    print(f"msc-gym search {tasks[0]} --policy {out} applies it")


def _with(job: JobConfig, out: Path | None = None, **changes: object) -> JobConfig:
    """The job with what the command line says instead, checked as the job file was."""
    given = {key: value for key, value in changes.items() if value is not None}
    try:
        settings = SearchConfig.model_validate({**job.search.model_dump(), **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise MscError(f"--{name.removesuffix('s')}: {first['msg']}; found {first['input']!r}") from None
    job = job.model_copy(update={"search": settings})
    return job if out is None else job.model_copy(update={"out": str(out)})


def _print_trials(found: list[SearchResult]) -> None:
    from msc_gym.display import printable
    from msc_gym.report import text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("agent", "trial", "accuracy", "MACs", "latency", "reward", "note"):
        table.add_column(head, justify="left" if head in ("agent", "note") else "right")
    for result in found:
        fronts = {t.index for t in result.pareto()}
        for t in result.trials:
            m, best = t.measurement, t.measurement.ok and t is result.best
            note = m.error or ("best" if best else "Pareto front" if t.index in fronts else "")
            cells = [
                t.agent,
                str(t.index + 1),
                text.percent(m.accuracy),
                text.count(m.macs),
                text.ratio(m.latency_ratio),
            ]
            style = "bold" if best else "red" if m.error else ""
            table.add_row(*map(Text, cells), f"{t.reward:.4f}", Text(printable(note)), style=style)
        table.add_section()
    Console(highlight=False).print(table)


def _display() -> PlainDisplay | RichDisplay:
    from msc_gym.display import display_for

    return display_for(sys.stdout)


def compress(
    task: JobFile,
    model: Annotated[str, typer.Option(help="module:function, instead of the job's model.", show_default=False)] = "",
    weights: Annotated[Path | None, typer.Option(help="Weights for --model, .safetensors.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, instead of the job's.", show_default=False)] = None,
    trials: Trials = None,
) -> None:
    """Search, fine-tune and export; leaves models, plan, result.json and report.html in the run folder.

    The same command again continues a run that was interrupted.
    """
    job = _with(load_job(task), trials=trials, out=out)
    from msc_gym.compress import compress as run_compress
    from msc_gym.loading import load_module

    if weights is not None and not model:
        raise MscError("--weights needs --model; the model of a job file has its weights")
    module = load_module(model, weights) if model else None
    with _display() as display:
        run_compress(job, module, display)
    print(f"everything is in {job.out}; open {Path(job.out) / 'report.html'}")


def validate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    model: Annotated[str, typer.Option(help="module:function, where the run had one.", show_default=False)] = "",
    weights: Annotated[Path | None, typer.Option(help="Weights for --model.", show_default=False)] = None,
) -> None:
    """Measure the best plans of a run again; exit code 1 if something comes out otherwise than its run.json says."""
    from msc_gym.engine import Evaluator
    from msc_gym.loading import load_module
    from msc_gym.runs import environment_changes, load_run
    from msc_gym.runs import validate as run_validate
    from msc_gym.task import CompressionTask

    found = load_run(run)
    job = read_job(found.job)
    task = CompressionTask.from_job(job, load_module(model, weights) if model else None)
    for line in environment_changes(found, task.parsed_target.backend):
        print(f"note: {line}")
    with Evaluator(task) as evaluator:
        checks = run_validate(found, task, evaluator, lambda check: print(check.text))
    wrong = sum(bool(check.differences) for check in checks)
    print(f"{len(checks) - wrong} of {len(checks)} plans came out the same")
    if wrong:
        raise typer.Exit(FAILED)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its result.json.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page.", show_default=False)] = None,
) -> None:
    """Write report.html again from the result.json of a run."""
    from msc_gym.report import load_result, write_report

    result = load_result(run)
    path = out or (run if run.is_dir() else run.parent) / "report.html"
    write_report(result, path)
    print(path)


@contextmanager
def _scalars(folder: Path | None, display: Progress) -> Iterator[Progress]:
    """Progress that is shown, and written for TensorBoard if there is a folder."""
    if folder is None:
        yield display
        return
    from msc_gym.scalars import Scalars

    with Scalars(folder, display) as scalars:
        yield scalars.trial
