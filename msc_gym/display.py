"""What a run shows while it works: live on a terminal, plain lines in a log, the same table at the end of both."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from msc_gym.engine import Measurement
from msc_gym.report import parse_result, text
from msc_gym.report.result import Result, Row
from msc_gym.search import Trial

PLAIN_WIDTH = 100
EVERY = 2.0  # seconds between plain lines, unless the best changes
PACE = 20  # trials or steps that the time left is estimated from


class Display(Protocol):
    """Told what a run does. Methods return at once and never raise for what they are told."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins, and with that the one before has ended."""
        ...

    def trial(
        self, index: int, total: int, agent: str, measurement: Measurement, best: Trial | None, hits: int
    ) -> None:
        """A trial of a search is done; see `msc_gym.search.Progress`."""
        ...

    def step(self, name: str, done: int, total: int, text: str = "") -> None:
        """Some of many steps are done."""
        ...

    def done(self, result: Mapping[str, Any]) -> None:
        """The run is over, with that `result.json`."""
        ...


def printable(line: object) -> str:
    """One line without control characters, whatever names and errors hold."""
    return "".join(c if c.isprintable() else " " for c in str(line))


def describe_best(best: Trial | None) -> str:
    """The best plan so far in a few words."""
    if best is None:
        return "nothing measured yet"
    found = best.measurement
    latency = f", latency {text.ratio(found.latency_ratio)}" if found.latency_ratio is not None else ""
    return f"best {text.percent(found.accuracy)} with {text.count(found.macs)} MACs{latency}"


class Pace:
    """Time left, from how long the last few took, so that cached trials do not promise too much for long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """What is counted next starts now."""
        self._name, self._last = "", self._clock()

    def count(self, name: str, done: int, total: int) -> str:
        """Elapsed and left, in words; another name starts where the one before ended."""
        if name != self._name:
            self._name, self._started = name, self._last
            self._times: deque[tuple[int, float]] = deque([(0, self._last)], maxlen=PACE + 1)
        now = self._last = self._clock()
        self._times.append((done, now))
        if len(self._times) > 2 and self._times[0][0] == 0:
            self._times.popleft()  # the first took longer: it set things up
        (first, since), passed = self._times[0], now - self._started
        left = (now - since) / (done - first) * (total - done) if done > first else 0.0
        return f"{text.duration(passed)} elapsed" + (f", {text.duration(left)} left" if done < total else "")


class PlainDisplay:
    """Lines without control characters: a stage, a new best, and every few seconds where it stands."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._pace = stream or sys.stdout, clock, Pace(clock)
        self._last, self._best = float("-inf"), ("", -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.flush()

    def stage(self, name: str, detail: str = "") -> None:
        """A line."""
        self._line(f"{name}: {detail}" if detail else name)
        self._pace.restart()
        self._last, self._best = float("-inf"), ("", -1)

    def trial(
        self, index: int, total: int, agent: str, measurement: Measurement, best: Trial | None, hits: int
    ) -> None:
        """A line if the best changed, at the end, and now and then."""
        times = self._pace.count(agent, index + 1, total)
        now_best = (agent, -1 if best is None else best.index)
        if now_best == self._best and index + 1 < total and not self._due():
            return
        self._best = now_best
        self._line(f"  {agent} {index + 1}/{total}: {describe_best(best)}; {hits} from the cache; {times}")
        if measurement.error:
            self._line(f"    failed: {measurement.error}")

    def step(self, name: str, done: int, total: int, text: str = "") -> None:
        """A line now and then, and at the end."""
        times = self._pace.count(name, done, total)
        if done >= total or self._due():
            self._line(f"  {name} {done}/{total}{f': {text}' if text else ''}; {times}")

    def done(self, result: Mapping[str, Any]) -> None:
        """The table."""
        console = Console(file=self._stream, width=PLAIN_WIDTH, color_system=None, force_terminal=False)
        console.print(final_table(result))

    def _due(self) -> bool:
        return self._clock() - self._last >= EVERY

    def _line(self, line: str) -> None:
        print(printable(line), file=self._stream, flush=True)
        self._last = self._clock()


class RichDisplay:
    """A live line or three at the bottom of the terminal; finished stages stay above. Use it as a context manager."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console or Console(highlight=False)
        self._clock, self._pace = clock, Pace(clock)
        self._spinner = Spinner("dots")
        self._stage, self._started = "", clock()
        self._bar: tuple[str, int, int] = ("", 0, 0)
        self._notes: list[str] = []
        self._outcome = ""
        self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        self._live.stop()

    def stage(self, name: str, detail: str = "") -> None:
        """The last stage gets its tick, this one the spinner."""
        self._finish()
        self._stage, self._started = name, self._clock()
        self._bar, self._notes, self._outcome = ("", 0, 0), [printable(detail)] if detail else [], printable(detail)
        self._pace.restart()
        self._live.start()

    def trial(
        self, index: int, total: int, agent: str, measurement: Measurement, best: Trial | None, hits: int
    ) -> None:
        """Bar, best so far, cache hits and times."""
        times = self._pace.count(agent, index + 1, total)
        self._bar = (f"{agent} {index + 1}/{total}", index + 1, total)
        self._outcome = describe_best(best)
        self._notes = [self._outcome, f"{hits} from the cache · {times}"]
        if measurement.error:
            self.console.print(Text(printable(f"  {agent} {index + 1} failed: {measurement.error}"), style="yellow"))

    def step(self, name: str, done: int, total: int, text: str = "") -> None:
        """Bar, text and times."""
        times = self._pace.count(name, done, total)
        self._bar, self._outcome = (f"{name} {done}/{total}", done, total), printable(text)
        self._notes = [note for note in (self._outcome, times) if note]

    def done(self, result: Mapping[str, Any]) -> None:
        """The table takes the place of the live lines."""
        self._finish()
        self._live.stop()
        self.console.print(final_table(result))

    def _finish(self) -> None:
        if self._stage:
            took = text.duration(self._clock() - self._started)
            line = Text.assemble(
                ("✓ ", "green"), (printable(self._stage), "bold"), f"  {self._outcome}  ", (took, "dim")
            )
            self.console.print(line)
        self._stage = ""

    def _render(self) -> RenderableType:
        if not self._stage:
            return Text()
        seconds = int(self._clock() - self._started)
        took = f"{seconds} s" if seconds < 60 else text.duration(seconds)
        head = Table.grid(padding=(0, 1))
        head.add_row(self._spinner, Text(printable(self._stage), style="bold"), Text(took, style="dim"))
        name, done, total = self._bar
        lines: list[RenderableType] = [head]
        if total:
            bar = Table.grid(padding=(0, 1))
            bar.add_row("  ", ProgressBar(total=total, completed=done, width=40), Text(printable(name)))
            lines.append(bar)
        return Group(*lines, *(Text(f"  {note}", style="dim") for note in self._notes))


def display_for(stream: TextIO) -> PlainDisplay | RichDisplay:
    """The display that suits a stream; to be used in a `with`."""
    console = Console(file=stream, highlight=False)
    return RichDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(stream)


def final_table(result: Mapping[str, Any] | Result) -> Table:
    """Original, agents before fine-tuning, and result; each latency is relative to the original on that engine."""
    found = parse_result(result)
    base, best = found.baseline, found.best
    tvm = base.tvm_ratio is not None or best.tvm_ratio is not None
    title = Text(printable(found.name), style="bold")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for head in ("test\naccuracy", "MACs", "params", "size"):
        table.add_column(head, justify="right")
    for engine in (printable(found.task.target), *(["TVM"] if tvm else [])):
        table.add_column(Text(f"latency,\n{engine}"), justify="right")
    rows = [("original", base), *found.agents.items(), ("result", best)]
    for position, (name, row) in enumerate(rows):
        cells = [_accuracy(row, base), *(_share(row, base, key, write) for key, write in COSTS.items())]
        cells.append(_latency(row.latency_ratio, row.latency_interval))
        cells += [_latency(row.tvm_ratio, row.tvm_interval)] if tvm else []
        last = position >= len(rows) - 2
        table.add_row(Text(printable(name)), *map(Text, cells), style="bold" if row is best else "", end_section=last)
    return table


COSTS: Mapping[str, Callable[[float], str]] = {"macs": text.count, "params": text.count, "bytes": text.size}


def _accuracy(row: Row, base: Row) -> str:
    change = None if row.test_accuracy is None or base.test_accuracy is None else row.test_accuracy - base.test_accuracy
    return text.percent(row.test_accuracy) + ("" if row is base or change is None else f"\n{text.points(change)}")


def _share(row: Row, base: Row, key: str, write: Callable[[float], str]) -> str:
    value, full = getattr(row, key), getattr(base, key)
    return write(value) if row is base else f"{write(value)}\n{text.percent(value / max(1, full), 1)}"


def _latency(ratio: float | None, interval: tuple[float, float] | None) -> str:
    return f"{text.ratio(ratio)}\n{text.interval(interval)}" if interval else text.ratio(ratio)
