"""The report: one page that stands alone, shows what it is given and nothing that hides in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from msc_core.errors import MscError
from msc_core.view.markup import Markup, el, escape
from msc_gym.report import figures, load_result, parse_result, write_pareto, write_report
from msc_gym.report.chart import Scale
from tests.synthetic_result import synthetic_result

HOSTILE = "</style></title><script>alert(1)</script>\"'><img src=https://x.test/a onerror=alert(1)>&amp;\x00\x1b[31m"
VOID = {"meta", "circle", "line", "path", "rect"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and gathers what matters."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.handle_starttag(tag, attrs)
        if tag != "meta":
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(result, tmp_path) -> Page:
    write_report(result, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text("utf-8"))


def replaced(value, old: str, new: str):
    """The result with every string, keys included, that is `old` replaced."""
    return json.loads(json.dumps(value).replace(json.dumps(old), json.dumps(new)))


@pytest.mark.parametrize(
    "result",
    [
        synthetic_result(),
        synthetic_result(latency=False),
        synthetic_result(agents=("amc",)),
        synthetic_result(agents=("uniform",), latency=False),
        synthetic_result() | {"trials": [], "exports": {}, "agents": {}, "seconds": {}, "environment": {}},
        synthetic_result() | {"exports": {"onnx": None, "tvm": {"file": "lib.so", "max_error": float("inf")}}},
    ],
    ids=["full", "no latency", "one agent", "one trial", "bare", "odd exports"],
)
def test_the_page_stands_alone(result, tmp_path):
    page = page_of(result, tmp_path)
    assert page.links == []
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    text = (tmp_path / "report.html").read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\(|@import|data:", text)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_page_says_what_was_found(tmp_path):
    words = page_of(synthetic_result(), tmp_path).words
    for fact in (
        "93.12%", "−0.42", "49.8%", "15.4M of 31.0M", "1.75×", "[0.560, 0.585]", "1.72×",  # noqa: RUF001
        "fine-tuned for 800 steps from 91.00%", "blocks.6.body2.conv", "56 of 64", "onnx/model.onnx", "561 kB", "3e-07",
        "torch 2.13.0", "2 x some CPU", "test 10,000", "Failed trials (2)", "DeadlineExceeded: build ran past 60 s",
    ):  # fmt: skip
        assert fact in words, fact


def test_without_failures_there_is_no_section_of_them(tmp_path):
    assert "Failed" not in page_of(synthetic_result(agents=("amc", "uniform")), tmp_path).words


def test_without_latency_there_is_no_column_of_it(tmp_path):
    words = page_of(synthetic_result(latency=False), tmp_path).words
    assert "Latency was not measured" in words
    assert "Speed" not in words


@pytest.mark.parametrize(
    "old", ["quickstart", "resnet20", "fashion_mnist", "onnxruntime", "macs", "amc", "stem.body.conv", "0123abc",
            "onnx/model.onnx", "tvm", "torch", "2 x some CPU", "validation", "baseline",
            "DeadlineExceeded: build ran past 60 s"],
)  # fmt: skip
def test_hostile_strings_are_text(old, tmp_path):
    result = synthetic_result()
    if old in ("macs", "baseline"):  # keys of ours, too
        result["task"]["budget"], result["seconds"] = {HOSTILE: 0.5}, {HOSTILE: 1.0}
    else:
        result = replaced(result, old, HOSTILE)
    page = page_of(result, tmp_path)
    assert page.links == []
    assert "script" not in page.tags and "img" not in page.tags
    assert "<script>alert(1)</script>" in page.words
    assert "\x00" not in page.words and "\x1b" not in page.words


@pytest.mark.parametrize("result", [synthetic_result(), replaced(synthetic_result(), "amc", HOSTILE)])
def test_the_picture_is_an_svg_that_stands_alone(result, tmp_path):
    write_pareto(result, tmp_path / "pareto.svg")
    text = (tmp_path / "pareto.svg").read_text("utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 2


def test_every_trial_is_a_mark_within_the_frame():
    result = parse_result(synthetic_result())
    cost, latency = figures.axes_of(result)
    for axis in (cost, latency):
        svg = ElementTree.fromstring(figures.tradeoff(result, axis))
        hints = [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
        assert sum(hint.startswith(("amc ", "uniform ", "random ")) for hint in hints) == len(result.succeeded)
        places = [float(v) for node in svg.iter() for k, v in node.attrib.items() if k in ("x", "cx", "x1", "x2")]
        assert min(places) >= 0 and max(places) <= figures.WIDTH


def test_a_hopeless_trial_does_not_flatten_the_rest():
    data = synthetic_result()
    data["trials"][5]["accuracy"] = 0.1
    low, high = figures.accuracy_bounds(parse_result(data))
    assert low > 0.6 and high < 1.0


def test_front():
    points = [(3.0, 0.9), (1.0, 0.5), (2.0, 0.4), (2.0, 0.7), (4.0, 0.9), (1.0, 0.2)]
    assert figures.front(points) == [(1.0, 0.5), (2.0, 0.7), (3.0, 0.9)]


def test_failed_trials_do_not_count_as_best():
    data = synthetic_result(agents=("amc",), trials=4)
    data["trials"][0] |= {"error": "killed", "accuracy": 0.0}
    assert "amc" in figures.progress(parse_result(data))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.8012, 0.9411), (12.0, 4_000.0), (-1e-3, 1e-3)])
def test_ticks_are_round_and_in_range(low, high):
    ticks = Scale(low, high, 0, 100).ticks(5)
    assert 3 <= len(ticks) <= 9
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    assert all(float(f"{tick:.6g}") == pytest.approx(tick) for tick in ticks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "expected a result with schema 1; found 2"),
        ({"task": None}, "task: "),
        ({"baseline": {"accuracy": "high"}}, "baseline.accuracy: "),
        ({"best": {}}, "best.accuracy: "),
        ({"trials": [{"agent": "amc"}]}, "trials.0.index: "),
        ({"seconds": {"search": float("nan")}}, "seconds.search: "),
    ],
)
def test_a_wrong_result_is_refused_with_its_place(change, message, tmp_path):
    with pytest.raises(MscError, match=re.escape(message)):
        write_report(synthetic_result() | change, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_unknown_keys_are_for_later_versions(tmp_path):
    page_of(synthetic_result() | {"novel": 1}, tmp_path)


def test_load_result_takes_a_folder_or_a_file(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(synthetic_result()))
    assert load_result(tmp_path) == load_result(tmp_path / "result.json")


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "\xff", json.dumps({"schema": 1})])
def test_load_result_names_the_file(content, tmp_path):
    (tmp_path / "result.json").write_text(content, "latin-1")
    with pytest.raises(MscError, match=r"result\.json"):
        load_result(tmp_path)


def test_load_result_of_nothing(tmp_path):
    with pytest.raises(MscError, match=r"no result\.json there"):
        load_result(tmp_path)


def test_markup_escapes_what_is_not_markup():
    assert el("p", "<b>", Markup("<i>"), class_='a"b') == '<p class="a&quot;b">&lt;b&gt;<i></p>'
    assert escape("\x00\ud800\t") == "\ufffd\ufffd\t"
