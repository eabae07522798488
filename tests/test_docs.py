"""The documentation is true: links lead somewhere, code runs, commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from msc_core.ops.matrix import matrix
from msc_gym.cli import app
from msc_gym.config import load_job

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def run(code: str, folder: Path) -> str:
    """Run code in a folder that sees `experiments/`, as the repository's root does."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"https?://", target):
            found = (page.parent / target).resolve()
            assert found.exists(), target


def test_every_page_is_listed():
    index = (ROOT / "docs/README.md").read_text()
    assert [p.name for p in PAGES[1:] if p.name != "README.md" and f"({p.name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page):
    known = get_command(app).commands
    used = re.findall(r"msc-gym ([a-z]+) ?([^`\n#]*)", page.read_text())
    for name, arguments in used:
        assert name in known, name
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z]+", arguments)) <= options | {"--help", "--debug"}, arguments


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_in_the_text_exist(page):
    for path in re.findall(r"`((?:msc_core|msc_gym|tests|experiments|docs)/[\w./-]*)`", page.read_text()):
        assert (ROOT / path).exists(), path


def test_a_block_without_data_runs(tmp_path):
    (block,) = blocks(ROOT / "docs/add-a-reward.md")
    assert float(run(block, tmp_path)) == pytest.approx(-0.0975)


def test_the_page_of_environments_runs(tmp_path):
    (block,) = blocks(ROOT / "docs/environments.md")
    printed = run(block, tmp_path)
    assert "MACs left" in printed and "MultiDiscrete" in printed


@pytest.mark.parametrize("index", range(2), ids=["search", "environment"])
def test_the_readme_runs(index, tmp_path):
    printed = run(blocks(ROOT / "README.md")[index], tmp_path)
    assert re.search(r"\d", printed)
    if index == 0:
        assert {"plan.json", "report.html", "model.onnx"} <= {p.name for p in (tmp_path / "readme").iterdir()}


def test_the_support_matrix_is_current():
    assert (ROOT / "docs/ops.md").read_text() == matrix(), "python -m msc_core.ops.matrix > docs/ops.md"


def test_the_quick_start_is_a_job():
    job = load_job(ROOT / "experiments/quickstart.yaml")
    assert job.budget == {"macs": 0.5}
    assert set(job.export) == {"torch", "onnx", "tvm"}
    assert Path(job.out).resolve() == ROOT / "runs/quickstart"
