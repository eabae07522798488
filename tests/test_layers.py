"""Imports go one way. The tables below are the specification; a new module must find its place in them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Part -> layer. A module may import parts of lower layers and of its own; the package itself is above all its parts.
LAYERS = {
    "msc_core.errors": 0,
    "msc_core.dims": 1,
    "msc_core.exchange": 1,
    "msc_core.reading": 1,
    "msc_core.onnx_skeleton": 1,
    "msc_core.data": 1,
    "msc_core.ir": 2,
    "msc_core.ops": 3,
    "msc_core.infer": 4,
    "msc_core.cost": 4,
    "msc_core.channel_flow": 4,
    "msc_core.channel_ids": 3,
    "msc_core.channel_zeros": 4,
    "msc_core.factors": 2,
    "msc_core.channels": 4,
    "msc_core.layout": 4,
    "msc_core.match": 4,
    "msc_core.rewrite": 4,
    "msc_core.plan": 5,
    "msc_core.schema": 6,
    "msc_core.codegen": 6,
    "msc_core.frontends": 6,
    "msc_core.patterns": 7,
    "msc_core.view": 7,
    "msc_core.backends": 7,
    "msc_core.measure": 8,
    "msc_core.tools": 9,
    "msc_core.plugin": 9,
    "msc_core.pipeline": 10,
    "msc_core": 11,
    "msc_gym.decisions": 19,
    "msc_gym.config": 20,
    "msc_gym.task": 21,
    "msc_gym.engine": 22,
    "msc_gym.envs": 23,
    "msc_gym.agents": 24,
    "msc_gym.objectives": 24,
    "msc_gym.report": 25,
    "msc_gym.search": 25,
    "msc_gym.runs": 26,
    "msc_gym.scalars": 26,
    "msc_gym.training": 26,
    "msc_gym.search_commands": 28,
    "msc_gym.store_commands": 28,
    "msc_gym.display": 26,
    "msc_gym.loading": 26,
    "msc_gym.translate": 27,
    "msc_gym.doctor": 26,
    "msc_gym.compress": 27,
    "msc_gym.options": 26,
    "msc_gym.tool_commands": 27,
    "msc_gym.cli": 28,
    "msc_gym": 29,
}

# Module -> what it imports upward on purpose, in a function: methods that only hand over, and recursion over the table.
KNOTS = {
    "msc_core.ir": {"msc_core.view.html", "msc_core.view.prototxt", "msc_core.view.svg"},
    "msc_core.ops.derived": {"msc_core.ops"},
    "msc_core.tools.track.compare": {"msc_core.tools.track.report"},
}

# Package -> top-level names that none of its modules may import.
NEVER = {
    "msc_core": {"msc_gym", "experiments", "tests", "envs", "agents"},
    "msc_gym": {"experiments", "tests", "envs", "agents"},
}

# Package -> the only third-party distributions that `import PACKAGE` may load, and those it must not.
LOADS_ONLY = {"msc_core": {"numpy"}}
LOADS_NOT = {
    "msc_core": {"torch", "tvm", "onnx", "onnxruntime"},
    "msc_gym": {"tvm", "ray", "matplotlib"},
}


def module_files(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    files = {}
    for package in NEVER:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


FILES = module_files()


def imports_of(source: str, module: str, is_package: bool = False) -> set[str]:
    """The modules that `source` imports, in functions too; `from a import b` is a.b where that is a module."""

    def targets() -> Iterator[str]:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                here = module.split(".")[: None if is_package else -1]
                start = here[: len(here) - node.level + 1] if node.level else []
                base = ".".join(start + ([node.module] if node.module else []))
                names = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name if name in FILES or name in LAYERS else base for name in names)

    return set(targets())


def part_of(module: str) -> str:
    """The entry of `LAYERS` that a module belongs to: `msc_core.ops.conv` is of `msc_core.ops`."""
    return ".".join(module.split(".")[:2])


def breaches(module: str, imports: set[str]) -> list[str]:
    """What is wrong with the imports of one module, a line for each."""
    package, part = module.split(".")[0], part_of(module)
    if part not in LAYERS:
        return [f"{module} has no layer: add {part} to LAYERS"]
    found = []
    for target in sorted(imports):
        top, target_part = target.split(".")[0], part_of(target)
        if top in NEVER[package]:
            found.append(f"{module} imports {target}: {package} never imports {top}")
        elif top in NEVER and target_part not in LAYERS:
            found.append(f"{module} imports {target}, which has no layer: add {target_part} to LAYERS")
        elif top in NEVER and LAYERS[target_part] > LAYERS[part]:
            found.append(f"{module} (layer {LAYERS[part]}) imports {target} (layer {LAYERS[target_part]})")
    return found


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """One cycle of a graph, or nothing."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imports_of_file(module: str) -> set[str]:
    path = FILES[module]
    return imports_of(path.read_text(), module, is_package=path.name == "__init__.py") - KNOTS.get(module, set())


def loaded_by(package: str) -> set[str]:
    """Top-level third-party modules that a fresh interpreter has after `import PACKAGE`."""
    program = (
        f"import sys, {package}\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if 'site-packages' in (getattr(module, '__file__', None) or ''):\n"
        "        print(name.split('.')[0])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return {name for name in result.stdout.split() if not name.startswith(("_", "msc_"))}


@pytest.mark.parametrize("module", FILES)
def test_imports_go_down(module):
    assert breaches(module, imports_of_file(module)) == []


def test_modules_are_found():
    assert {"msc_core.errors", "msc_core.ir"} <= FILES.keys()


@pytest.mark.parametrize("grain", [str, part_of], ids=["modules", "parts"])
def test_no_cycles(grain):
    edges: dict[str, set[str]] = {}
    for module in FILES:
        targets = {grain(target) for target in imports_of_file(module) if target.split(".")[0] in NEVER}
        edges.setdefault(grain(module), set()).update(targets - {grain(module)})
    assert cycle(edges) == []


@pytest.mark.parametrize("package", LOADS_ONLY)
def test_import_loads_only(package):
    assert loaded_by(package) <= LOADS_ONLY[package]


@pytest.mark.parametrize("package", [package for package in LOADS_NOT if package in FILES])
def test_import_does_not_load(package):
    assert not loaded_by(package) & LOADS_NOT[package]


# The checker itself


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("msc_core.errors", "from msc_core.ir import MSCGraph", "imports msc_core.ir (layer"),
        ("msc_core.errors", "import msc_core.ir as ir", "imports msc_core.ir (layer"),
        ("msc_core.errors", "from msc_core import ir", "imports msc_core.ir (layer"),
        ("msc_core.errors", "from . import ir", "imports msc_core.ir (layer"),
        ("msc_core.errors", "from .ir import MSCGraph", "imports msc_core.ir (layer"),
        ("msc_core.ops.conv", "from ..tools.prune import prune", "imports msc_core.tools.prune (layer"),
        ("msc_core.ops.conv", "def f():\n    from msc_core.measure import measure", "imports msc_core.measure (layer"),
        ("msc_core.data", "from msc_core.ir import MSCGraph", "imports msc_core.ir (layer"),
        ("msc_core.plan", "from msc_core.codegen import torch", "imports msc_core.codegen"),
        ("msc_core.pipeline.manager", "import msc_core", "imports msc_core (layer"),
        ("msc_core.pipeline.manager", "import msc_gym", "msc_core never imports msc_gym"),
        ("msc_gym.task", "from msc_gym.engine import Evaluator", "imports msc_gym.engine (layer"),
        ("msc_gym.cli", "from experiments import models", "msc_gym never imports experiments"),
        ("msc_gym.cli", "import envs", "msc_gym never imports envs"),
        ("msc_core.novel", "", "add msc_core.novel to LAYERS"),
        ("msc_core.pipeline.manager", "from msc_core.novel import x", "add msc_core.novel to LAYERS"),
    ],
)
def test_an_upward_import_is_caught(module, source, breach):
    (found,) = breaches(module, imports_of(source, module))
    assert breach in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("msc_core.plan", "from msc_core.channels import channel_groups"),
        ("msc_core.channels", "from msc_core.infer import infer"),
        ("msc_core.ops.conv", "from .op import Op\nfrom ..ir import Node\nimport numpy.linalg, torch"),
        ("msc_gym.task", "import msc_core as msc"),
        ("msc_gym.cli", "from msc_gym.agents import search"),
    ],
)
def test_a_downward_import_is_fine(module, source):
    assert breaches(module, imports_of(source, module)) == []


def test_a_relative_import_of_a_package_starts_at_itself():
    assert imports_of("from .op import Op", "msc_core.ops", is_package=True) == {"msc_core.ops.op"}
    assert imports_of("from .op import Op", "msc_core.ops.conv") == {"msc_core.ops.op"}


def test_a_cycle_is_caught():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
