"""`to_torch` and the printed source: same names, same answers, and nothing in a graph can become code."""

from __future__ import annotations

import ast
import copy
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from experiments.models import MLP, VGG, MobileNet, ResNet20
from msc_core import MscError, MSCGraph, Node, Tensor, from_torch, to_torch
from msc_core.codegen.torch import from_module, save_torch, torch_source
from msc_core.codegen.torch_calls import module_paths
from msc_core.errors import InvalidGraph
from msc_core.ops import OPS, call

IMAGES = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
HOSTILE = [
    'x"); import os; os.abort(); ("', "x'''\n    import os", '"""', "a\\", "class", "__init__", "self", "torch", "F",
    "été.重み", "a b", "0", "1x", "", "..", "{0}", "\ud800",
]  # fmt: skip


def trained(module: nn.Module) -> nn.Module:
    """The module in evaluation mode, with statistics that are not 0 and 1."""
    torch.manual_seed(1)
    module.train()(torch.randn(16, 1, 28, 28))
    return module.eval()


@pytest.fixture(scope="module", params=[ResNet20, MobileNet, VGG, MLP], ids=lambda model: model.__name__)
def pair(request) -> tuple[nn.Module, MSCGraph]:
    torch.manual_seed(0)
    module = trained(request.param())
    return module, from_torch(module, IMAGES[:2], dynamic_shapes=({0: "N"},))


def linear_graph(names: dict[str, str], graph_name: str = "net") -> MSCGraph:
    """`y = x @ w.T + b`, then `relu`, with names of the caller's choice for x, w, b, fc (a node) and y (a node)."""
    n = {key: names.get(key, key) for key in ("x", "w", "b", "fc", "y")}
    weights = {n["w"]: np.arange(6, dtype=np.float32).reshape(2, 3), n["b"]: np.float32([1, -20])}
    tensors = {name: Tensor(name, array.shape) for name, array in weights.items()}
    tensors |= {n["x"]: Tensor(n["x"], ("N", 3)), n["fc"]: Tensor(n["fc"], ("N", 2)), n["y"]: Tensor(n["y"], ("N", 2))}
    nodes = (
        Node(n["fc"], "linear", (n["x"], n["w"], n["b"]), (n["fc"],)),
        Node(n["y"], "relu", (n["fc"],), (n["y"],)),
    )
    return MSCGraph(graph_name, nodes, (n["x"],), (n["y"],), weights, tensors)


EXPECTED = torch.tensor([[6.0, 0.0]])  # of linear_graph at (1, 1, 2) is (0+1+4)+1 and (3+4+10)-20


def test_module_agrees(pair):
    module, graph = pair
    with torch.no_grad():
        torch.testing.assert_close(to_torch(graph).eval()(IMAGES), module(IMAGES))


def test_state_dict_is_that_of_the_original(pair):
    module, graph = pair
    ours, theirs = to_torch(graph), module.state_dict()
    theirs = {name: tensor for name, tensor in theirs.items() if not name.endswith("num_batches_tracked")}
    assert list(ours.state_dict()) == list(graph.weights)
    assert ours.state_dict().keys() == theirs.keys()
    assert dict(ours.named_parameters()).keys() == dict(module.named_parameters()).keys()
    ours.load_state_dict(theirs)


def test_training_mode_is_torchs(pair):
    module, graph = pair
    module, ours = copy.deepcopy(module).train(), to_torch(graph).train()
    answers = []
    for net in (module, ours):
        torch.manual_seed(2)  # for dropout
        output = net(IMAGES)
        output.square().sum().backward()
        answers.append(output.detach())
    torch.testing.assert_close(*answers)
    theirs = dict(module.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-5)
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, module.state_dict()[name])


def test_weights_come_back(pair):
    _, graph = pair
    assert from_module(graph, to_torch(graph)) == graph
    module = to_torch(graph)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    back = from_module(graph, module)
    name, parameter = next(iter(module.named_parameters()))
    np.testing.assert_array_equal(back.weights[name], parameter.detach().numpy())
    assert back.nodes == graph.nodes
    assert back != graph


def test_weights_of_another_structure_are_refused():
    graph = linear_graph({})
    with pytest.raises(InvalidGraph, match="the module has no 'w'"):
        from_module(graph, nn.Linear(3, 2))
    other = graph.replace(
        weights={"w": np.zeros((2, 5), np.float32), "b": graph.weights["b"]},
        tensors={**graph.tensors, "w": Tensor("w", (2, 5))},
    )
    with pytest.raises(InvalidGraph, match=r"weight 'w' is float32\[2, 5\]"):
        from_module(graph, to_torch(other))


def test_a_deep_copy_has_its_own_weights_and_mode(pair):
    _, graph = pair
    module = to_torch(graph).eval()
    twin = copy.deepcopy(module).train()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        before = module(IMAGES)
        assert not torch.equal(before, twin(IMAGES))
        torch.testing.assert_close(before, to_torch(graph).eval()(IMAGES))


def test_inputs_by_position_and_by_name_and_several_outputs():
    tensors = {name: Tensor(name, (2,)) for name in ("a", "b:0", "d", "s")}
    nodes = (Node("d", "subtract", ("a", "b:0"), ("d",)), Node("s", "add", ("d", "b:0"), ("s",)))
    graph = MSCGraph("two", nodes, ("a", "b:0"), ("s", "d", "a"), {}, tensors)
    module = to_torch(graph)
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    for outputs in (module(a, b), module(**{"b:0": b, "a": a}), module(a, **{"b:0": b})):
        assert [o.tolist() for o in outputs] == [[1, 2], [-2, -3], [1, 2]]
    for args, kwargs in [((a,), {}), ((a, b, a), {}), ((a,), {"c": b}), ((a,), {"a": b})]:
        with pytest.raises(MscError, match=r"expected the inputs \['a', 'b:0'\]"):
            module(*args, **kwargs)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    module = Tied()
    ours = to_torch(from_torch(module, torch.ones(1, 3)))
    assert [name for name, _ in ours.named_parameters()] == ["a.weight"]
    torch.testing.assert_close(ours(torch.ones(1, 3)), module(torch.ones(1, 3)))


def test_scalars_and_integers_are_buffers():
    weights = {"half": np.float32(0.5), "count": np.int64([3, 4])}
    weights = {name: np.asarray(array) for name, array in weights.items()}
    tensors = {name: Tensor(name, array.shape, array.dtype.name) for name, array in weights.items()}
    tensors |= {"x": Tensor("x", (2,)), "y": Tensor("y", (2,))}
    graph = MSCGraph("s", (Node("y", "multiply", ("x", "half"), ("y",)),), ("x",), ("y", "count"), weights, tensors)
    module = to_torch(graph)
    assert list(module.parameters()) == []
    assert from_module(graph, module) == graph


def test_a_constant_of_a_call_moves_with_the_module_but_is_no_weight(monkeypatch, tmp_path):
    shift = np.array([1.0, float("inf")], np.float32)
    row = dataclasses.replace(OPS["relu"], torch=lambda b: call("torch.add", call("F.relu", *b.x), shift))
    monkeypatch.setitem(OPS, "relu", row)
    graph = linear_graph({"b": "constant_0"})
    module = to_torch(graph)
    expected = EXPECTED + torch.tensor(shift)
    assert torch.equal(module(torch.tensor([[1.0, 1, 2]])), expected)
    assert module.double()(torch.tensor([[1.0, 1, 2]]).double()).dtype == torch.float64
    assert list(module.state_dict()) == ["w", "constant_0"]
    save_torch(graph, tmp_path)
    assert torch.equal(run_alone(tmp_path, torch.tensor([[1.0, 1, 2]])), expected)


@pytest.mark.parametrize(
    "names",
    [
        ["w", "w.b"], ["w.b", "w"], ["a:0", "a.0"], ["x.y", "x", "x_", "x.y.z"], ["train", "train_", "training"],
        ["", "_", "."], ["_msc_steps", "forward.weight", "_parameters.x"], HOSTILE,
    ],
    ids=repr,
)  # fmt: skip
def test_paths_of_odd_names(names):
    paths = module_paths(names)
    assert list(paths) == list(names)
    assert len(set(paths.values())) == len(paths)
    for name, path in paths.items():
        assert path.replace("_", "") == name.replace("_", "")
    module = nn.Module()
    for path in paths.values():  # torch accepts each
        *scopes, leaf = path.split(".")
        holder = module
        for scope in scopes:
            if scope not in holder._modules:
                holder.add_module(scope, nn.Module())
            holder = holder.get_submodule(scope)
        holder.register_buffer(leaf, torch.zeros(1))
    assert module.state_dict().keys() == set(paths.values())


@pytest.mark.parametrize("weights", [("w", "w.b"), ("w.b", "w"), ("a:0", "a.0"), ("forward", "train"), ("é.w", "")])
def test_odd_weight_names_work(weights):
    if "" in weights:  # the empty name means "absent"
        weights = (weights[0], " ")
    graph = linear_graph({"w": weights[0], "b": weights[1]})
    module = to_torch(graph)
    assert torch.equal(module(torch.tensor([[1.0, 1, 2]])), EXPECTED)
    assert from_module(graph, module) == graph
    twin = to_torch(graph)
    twin.load_state_dict(module.state_dict())


ALONE = """
import importlib.abc, sys
class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"msc_core", "msc_gym", "experiments", "safetensors", "onnx", "onnxruntime", "tvm"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Only())
sys.path[:0] = [sys.argv[1]]
import model, torch
assert "msc_core" not in sys.modules and "safetensors" not in sys.modules
net = model.load()
assert not net.training
inputs = torch.load(sys.argv[1] + "/in.pt", weights_only=True)
with torch.no_grad():
    torch.save(net(*inputs), sys.argv[1] + "/out.pt")
"""


def run_alone(folder, *inputs: torch.Tensor) -> torch.Tensor:
    """What `model.py` in `folder` answers in a process that has torch but nothing of ours."""
    torch.save(inputs, folder / "in.pt")
    site = next(path for path in sys.path if path.endswith("site-packages"))
    program = f"import sys; sys.path.append({site!r})\n{ALONE}"
    command = [sys.executable, "-I", "-S", "-c", program, str(folder)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return torch.load(folder / "out.pt", weights_only=True)


def test_source_runs_with_torch_only(tmp_path):
    module = trained(ResNet20())
    graph = from_torch(module, IMAGES[:2], dynamic_shapes=({0: "N"},))
    save_torch(graph, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(run_alone(tmp_path, IMAGES), module(IMAGES))


def test_source_reads_like_the_network(pair):
    _, graph = pair
    source = torch_source(graph)
    compile(source, "model.py", "exec")
    assert f"class {graph.name}(Scope):" in source
    if graph.name == "ResNet20":
        assert (
            "blocks_0_body1_conv = F.conv2d(stem_relu, self.blocks[0].body1.conv.weight, None, "
            "stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)" in source
        )
        assert 'declare(self, "blocks.0.body1.conv.weight", (16, 16, 3, 3))' in source
        assert 'declare(self, "stem.body.bn.running_mean", (16,), buffer=True)' in source


PLACES = ["graph", "x", "w", "b", "fc", "y"]


@pytest.mark.parametrize(("place", "name"), [(p, n) for p in PLACES for n in HOSTILE if n or p == "graph"])
def test_names_cannot_become_code(place, name):
    graph = linear_graph({place: name}, name if place == "graph" else "net")
    tree = ast.parse(torch_source(graph))  # the text is valid Python ...
    names = {node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)}
    assert names == {"json", "torch", "torch.nn.functional"}  # ... that imports what it should ...
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    calls -= {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(torch_source(linear_graph({}))))
        if isinstance(node, ast.Call)
    }
    assert not calls or (place == "graph" and len(calls) == 1)  # ... and calls what it should
    namespace: dict[str, object] = {"__file__": "model.py", "__name__": "model"}
    exec(compile(tree, "model.py", "exec"), namespace)  # noqa: S102
    ours = [value for value in namespace.values() if getattr(value, "__module__", "") == "model"]
    (network,) = (value for value in ours if isinstance(value, type) and value.__name__ != "Scope")
    module = network()
    module.load_state_dict(to_torch(graph).state_dict())
    assert torch.equal(module(torch.tensor([[1.0, 1, 2]])), EXPECTED)
    assert torch.equal(to_torch(graph)(torch.tensor([[1.0, 1, 2]])), EXPECTED)


def test_a_call_outside_of_torch_is_refused(monkeypatch):
    monkeypatch.setitem(OPS, "relu", dataclasses.replace(OPS["relu"], torch=lambda b: call("os.abort")))
    for write in (to_torch, torch_source):
        with pytest.raises(MscError, match=r"torch call 'os.abort': expected 'F.<function>'"):
            write(linear_graph({}))
