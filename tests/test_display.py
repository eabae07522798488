"""What a run shows: plain lines in a log, live lines on a terminal, one table at the end of both."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from msc_gym.display import Pace, PlainDisplay, RichDisplay, display_for, final_table
from msc_gym.engine import Measurement
from msc_gym.search import Trial
from tests.synthetic_result import synthetic_result


class Clock:
    """Time that only passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tried(index: int, accuracy: float, error: str = "") -> Trial:
    found = Measurement("p", accuracy=accuracy, macs=15_400_000, latency_ratio=0.571, error=error)
    return Trial(index, "amc", {}, found, accuracy - 1, task=None)


def show_search(display, clock: Clock, accuracies: list[float], seconds: float) -> None:
    best = None
    for index, accuracy in enumerate(accuracies):
        clock.now += seconds
        trial = tried(index, accuracy)
        best = trial if best is None or accuracy > best.measurement.accuracy else best
        display.trial(index, len(accuracies), "amc", trial.measurement, best, 3)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plain(clock) -> PlainDisplay:
    return PlainDisplay(io.StringIO(), clock)


def lines(display: PlainDisplay) -> list[str]:
    return display._stream.getvalue().splitlines()


def test_a_plain_line_says_where_the_search_stands(plain, clock):
    show_search(plain, clock, [0.9, 0.8], 4.0)
    assert lines(plain)[0] == (
        "  amc 1/2: best 90.00% with 15.4M MACs, latency 0.571; 3 from the cache; 4.0 s elapsed, 4.0 s left"
    )
    assert lines(plain)[1].endswith("8.0 s elapsed")


def test_plain_lines_are_few(plain, clock):
    show_search(plain, clock, [0.9] * 1000, 0.01)  # ten seconds
    assert len(lines(plain)) <= 8


def test_a_new_best_is_always_shown(plain, clock):
    show_search(plain, clock, [0.1, 0.2, 0.2, 0.3], 0.001)
    assert len(lines(plain)) == 3


def test_fine_tuning_steps_are_few_and_end_with_the_last(plain, clock):
    for step in range(1, 501):
        clock.now += 0.02
        plain.step("finetune", step, 500, "loss 0.3")
    assert len(lines(plain)) <= 7
    assert lines(plain)[-1] == "  finetune 500/500: loss 0.3; 10.0 s elapsed"


def test_failures_are_shown_with_their_reason(plain):
    plain.trial(0, 1, "amc", tried(0, 0.0, "build ran past 60 s").measurement, None, 0)
    assert lines(plain) == [
        "  amc 1/1: nothing measured yet; 0 from the cache; 0 ms elapsed", "    failed: build ran past 60 s"
    ]  # fmt: skip


def test_a_plain_log_has_no_control_characters(plain):
    plain.stage("search\x1b[31m", "a\nb\r\x07")
    plain.trial(0, 1, "amc", tried(0, 0.0, "\x1b]0;title\x07").measurement, None, 0)
    plain.step("finetune", 1, 1, "\x1b[2J")
    result = synthetic_result()
    result["name"] = "x\x1b[2Jy"
    plain.done(result)
    assert all(c.isprintable() or c == "\n" for c in plain._stream.getvalue())


def test_time_left_forgets_the_cached_trials(clock):
    pace = Pace(clock)
    for done in range(1, 51):  # from the store, in no time
        pace.count("amc", done, 100)
    for done in range(51, 76):
        clock.now += 2
        text = pace.count("amc", done, 100)
    assert text == "50.0 s elapsed, 50.0 s left"


def table_of(result) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(final_table(result))
    return console.file.getvalue()


def test_the_table_compares_and_fits_a_terminal():
    text = table_of(synthetic_result())
    for fact in ("original", "amc", "uniform", "random", "result", "93.12%", "−0.42", "[0.560, 0.585]", "0.581"):  # noqa: RUF001
        assert fact in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_without_latency_and_with_markup_in_names():
    result = synthetic_result(latency=False)
    result["agents"]["[b]x[/no]"] = result["agents"].pop("random")
    assert "[b]x[/no]" in table_of(result)


def test_a_terminal_gets_live_lines(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, legacy_windows=False)
    with RichDisplay(console, clock) as display:
        display.stage("search", "amc")
        show_search(display, clock, [0.9, 0.92, 0.91], 1.0)
        display.stage("finetune")
        display.step("finetune", 1, 10, "loss 0.3")
        display.done(synthetic_result())
    text = console.file.getvalue()
    assert "✓" in text and "best 92.00% with 15.4M MACs, latency 0.571" in text and "result" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is back


def test_an_error_gives_the_terminal_back(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, legacy_windows=False)
    with pytest.raises(KeyboardInterrupt), RichDisplay(console, clock) as display:
        display.stage("search")
        raise KeyboardInterrupt
    assert console.file.getvalue().count("\x1b[?25h") == 1
    assert "✓" not in console.file.getvalue()


def test_the_display_suits_the_stream():
    assert isinstance(display_for(io.StringIO()), PlainDisplay)
