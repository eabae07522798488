"""Compression tasks and job files: what they hold, and what they refuse."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing.reduction
import subprocess
import sys

import pytest
import torch
from torch import nn

from msc_core import MscError, MSCGraph, from_torch
from msc_core.data import Dataset, Split
from msc_gym import CompressionTask
from msc_gym.agents import AGENTS
from msc_gym.config import MAX_YAML_BYTES, AgentName, RewardName, get_args, load_job
from msc_gym.envs import REWARDS


@pytest.fixture
def small(tiny_task):
    """Arguments of a task, to be changed."""
    return {"model": tiny_task.graph, "data": tiny_task.dataset, "calibration": 100, "validation": 100}


def test_a_task_derives_everything(tiny_task):
    task = tiny_task
    assert [g.size for g in task.groups] == [16, 32, 32, 48]
    assert [task.choices(g) for g in task.groups][3] == (16, 24, 32, 40, 48)  # from 20% up, in eights
    assert task.limits == {"macs": 0.5 * task.cost_model.full.macs}
    assert task.within_budget(task.floor_choices) and not task.within_budget(task.full_choices)
    assert task.pruner.compress(task.identity) is task.graph
    assert len(task.calibration_inputs) == 200
    assert (len(task.scoring_split()), len(task.scoring_split(full=True)), len(task.scoring_split("test"))) == (
        300,
        400,
        200,
    )
    (name,) = task.graph.inputs
    output = task.baseline_runner.run({name: task.dataset.validation.x[:1]})
    assert output[task.graph.outputs[0]].shape == (1, 10)


def test_the_three_forms_of_a_model_are_one(tiny_job, tiny_data):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(9216, 10))
    graph = from_torch(net, torch.zeros(2, 1, 28, 28), dynamic_shapes=({0: "N"},))
    graph.save(tiny_job.parent / "other")
    tasks = [CompressionTask(model, tiny_data) for model in (net, graph, tiny_job.parent / "other")]
    assert len({task.fingerprint for task in tasks}) == 1


def test_a_task_is_data(tiny_task):
    again = multiprocessing.reduction.ForkingPickler.loads(multiprocessing.reduction.ForkingPickler.dumps(tiny_task))
    assert again.search_fingerprint == tiny_task.search_fingerprint
    assert copy.deepcopy(tiny_task) is tiny_task
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_task.floor = 0.5
    with pytest.raises(TypeError):
        tiny_task.budget["macs"] = 1.0


def test_the_fingerprint_covers_what_a_measurement_depends_on(small):
    def changed(**changes):
        return CompressionTask(**(small | changes))

    task = changed()
    graph = task.graph
    (name, weight), *_ = graph.weights.items()
    other = small["data"].test
    data = dataclasses.replace(small["data"], test=Split(other.x, (other.y + 1) % 10))
    variants = [
        changed(model=graph.replace(weights={**graph.weights, name: weight * 1.001})),
        changed(data=data),
        changed(calibration=99),
        changed(validation=99),
        changed(seed=1),
        changed(target="torch"),
    ]
    assert len({v.fingerprint for v in [task, *variants]}) == 7
    assert changed().fingerprint == task.fingerprint
    searches = [changed(budget={"macs": 0.6}), changed(floor=0.3)]
    assert len({v.search_fingerprint for v in [task, *searches]}) == 3
    assert len({v.fingerprint for v in [task, *searches]}) == 1  # measured plans serve every budget


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"macs": 0}}, "budget macs must be a fraction in (0, 1]; found 0"),
        ({"budget": {"macs": 1.5}}, "budget macs must be a fraction in (0, 1]; found 1.5"),
        ({"budget": {"macs": float("nan")}}, "budget macs must be a fraction in (0, 1]; found nan"),
        ({"budget": {"macs": True}}, "budget macs must be a fraction"),
        ({"budget": {"mac": 0.5}}, "budget: unknown key 'mac'; did you mean 'macs'?"),
        ({"budget": 0.5}, "budget must map macs, params, bytes, bops, latency to fractions; found float"),
        ({"budget": {"macs": 0.01}}, "budget macs: 0.01 cannot be met: with every decision at its least"),
        ({"target": "onnxruntme"}, "did you mean 'onnxruntime'?"),
        ({"target": "zzz"}, "known: onnxruntime, openvino, tensorflow, tensorrt, torch, tvm"),
        ({"divisor": 0}, "divisor must be an integer of at least 1; found 0"),
        ({"calibration": 1.5}, "calibration must be an integer"),
        ({"floor": 0}, "floor must be a fraction in (0, 1]; found 0"),
        ({"floor": 1.0}, "has nothing to decide on: prune (divisor 8, floor 1.0"),
        ({"model": "nowhere"}, "nowhere holds no graph.json"),
        ({"model": 3}, "model must be an MSCGraph, its folder or a torch.nn.Module; found int"),
        ({"data": "fashion"}, "unknown data set 'fashion'"),
        ({"data": 3}, "data must be a Dataset or a name; found int"),
    ],
)
def test_what_a_task_refuses(small, changes, message):
    with pytest.raises(MscError) as error:
        CompressionTask(**(small | changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fixed_batch_is_refused(tiny_data):
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(9216, 10))
    with pytest.raises(MscError, match=r"fixed batch 2; export it with a symbolic one"):
        CompressionTask(from_torch(net, torch.zeros(2, 1, 28, 28)), tiny_data)


def test_data_of_another_shape_is_refused(small):
    def cropped(split: Split) -> Split:
        return Split(split.x[..., :20], split.y)

    d = small["data"]
    data = Dataset("cropped", *(cropped(s) for s in (d.train, d.validation, d.test)))
    with pytest.raises(MscError, match=r"takes float32\['N', 1, 28, 28\], but data set 'cropped' has .*20"):
        CompressionTask(**(small | {"data": data}))


# Job files


def test_a_job_file_is_a_task(tiny_job, tiny_task):
    job = load_job(tiny_job)
    assert job.search.trials == 10 and job.search.agents == ["amc", "uniform", "random"]
    assert job.out == str(tiny_job.parent / "runs/job")
    again = CompressionTask.from_yaml(tiny_job)
    assert again.search_fingerprint == tiny_task.search_fingerprint
    assert again.graph == MSCGraph.load(tiny_job.parent / "model")


def test_names_are_those_of_the_code():
    assert set(get_args(AgentName)) == set(AGENTS)
    assert set(get_args(RewardName)) == set(REWARDS)


def test_finetune_counts_steps(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model: m\nfinetune: {epochs: 2, batch: 100, lr: 0.5}")
    recipe = load_job(path).finetune.recipe(samples=1000)
    assert (recipe.steps, recipe.batch, recipe.lr) == (20, 100, 0.5)
    path.write_text("model: m\nfinetune: {steps: 7}")
    assert load_job(path).finetune.recipe(samples=1000).steps == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: m\nserch: {}", "line 2: serch: unknown key; did you mean 'search'?"),
        ("model: m\nsearch:\n  trails: 3", "line 3: search.trails: unknown key; did you mean 'trials'?"),
        ("model: m\nfinetune: {steps: 1, rate: 1}", "line 2: finetune.rate: unknown key"),
        ("model: m\nbudget: {mac: 0.5}", "line 2: budget.mac: unknown key; did you mean 'macs'?"),
        ("model: m\nbudget: {macs: 0}", "line 2: budget.macs: should be greater than 0; found 0"),
        ("model: m\nbudget: {macs: 2}", "line 2: budget.macs: should be less than or equal to 1; found 2"),
        ("model: m\nbudget: {macs: half}", "line 2: budget.macs: should be a valid number; found 'half'"),
        ("model: m\nbudget: half", "line 2: budget: should be a valid dictionary; found 'half'"),
        ("model: m\ndivisor: eight", "line 2: divisor: should be a valid integer; found 'eight'"),
        ("model: m\nsearch: {agents: [amcc]}", "search.agents.0: unknown value 'amcc'; did you mean 'amc'?"),
        ("model: m\nsearch: {agents: []}", "search.agents: List should have at least 1 item"),
        ("model: m\nexport: [tvn]", "export.0: unknown value 'tvn'; did you mean 'tvm'?"),
        ("model: m\nfinetune: {epochs: 1, steps: 2}", "finetune: give exactly one of 'epochs' and 'steps'"),
        ("data: m", "key 'model' is missing"),
        ("model: [1]", "line 1: model: should be a valid string; found list"),
        ("model: os.path:join", "names Python code, which a job file cannot run; give it on the command line"),
        ("model: m\nmodel: n", "line 2: key 'model' is given twice"),
        ("model: [m", "not readable as YAML"),
        ("model: !!python/object/apply:os.getcwd []", "not readable as YAML"),
        ("- model", "expected keys and values; found list"),
        ("", "expected keys and values; found NoneType"),
        ("? [1, 2]\n: 3", "not readable as YAML"),
        ("[" * 1500, "not readable as YAML"),
        ("a: " + "{a: " * 20 + "1" + "}" * 20, "nested too deeply"),
        ("# " + "x" * MAX_YAML_BYTES, "larger than"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nmodel: *c", "a job file has no aliases"),
    ],
)
def test_what_a_job_file_refuses(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(MscError) as error:
        load_job(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: m", "holds no graph.json"),
        ("model: model\ndata: fashion", "unknown data set 'fashion'"),
        ("model: model\ndata: none.npz", "none.npz is not a readable .npz"),
        ("model: model\ndata: tiny.npz\ntarget: tvmm", "did you mean 'tvm'?"),
        ("model: model\ndata: tiny.npz\nbudget: {macs: 0.01}", "cannot be met"),
    ],
)
def test_what_a_task_from_a_job_file_refuses(tiny_job, text, message):
    path = tiny_job.parent / "bad.yaml"
    path.write_text(text)
    with pytest.raises(MscError) as error:
        CompressionTask.from_yaml(path)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))


def test_a_missing_job_file_is_named(tmp_path):
    with pytest.raises(MscError, match=r"none\.yaml: no such job file"):
        CompressionTask.from_yaml(tmp_path / "none.yaml")


def test_nothing_that_a_job_names_is_imported(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (tmp_path / "job.yaml").write_text("model: evil:make")
    program = "import sys; from msc_gym.config import load_job; sys.path.insert(0, sys.argv[1]); load_job(sys.argv[2])"
    command = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "job.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "names Python code" in result.stderr and "imported" not in result.stderr
