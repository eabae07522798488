"""`from_torch`: names, ties and shapes of the source survive; what cannot be imported is named with its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.models import ResNet20
from msc_core import MscError, MSCGraph, from_torch, to_torch
from msc_core.errors import UnsupportedOperator


def check(module: nn.Module, *inputs: torch.Tensor, **options: object) -> MSCGraph:
    """The graph of a module, which computes what the module computes."""
    graph = from_torch(module, inputs, **options)
    with torch.no_grad():
        expected = module.eval()(*(x.clone() for x in inputs))
        found = to_torch(graph).eval()(*(x.clone() for x in inputs))
    torch.testing.assert_close(found, expected)
    return graph


class Net(nn.Module):
    """A module whose `forward` is a function of the module and its inputs."""

    def __init__(self, forward, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.function = forward

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, *inputs)


def test_names_are_module_paths():
    graph = check(ResNet20(width=4), torch.randn(2, 1, 28, 28))
    names = [node.name for node in graph.nodes]
    assert names[:5] == ["stem.body.conv", "stem.body.bn", "stem.relu", "blocks.0.body1.conv", "blocks.0.body1.bn"]
    assert names[-3:] == ["head.pool", "head.flatten", "head.fc"]
    assert graph.node("blocks.3.shortcut.conv").scope == "blocks.3.shortcut.conv"
    assert graph.node("blocks.3.shortcut.conv").inputs[1] == "blocks.3.shortcut.conv.weight"
    assert graph.inputs == ("x",)
    assert graph.outputs == ("head.fc",)
    assert graph.name == "ResNet20"
    assert from_torch(ResNet20(width=4), torch.randn(2, 1, 28, 28), name="mine").name == "mine"


def test_layers_stay_whole():
    graph = from_torch(ResNet20(), torch.randn(2, 1, 28, 28))
    ops = {"conv2d": 21, "batch_norm": 21, "relu": 19, "add": 9, "adaptive_avg_pool2d": 1, "flatten": 1, "linear": 1}
    assert graph.inspect()["ops"] == ops


def test_importing_twice_gives_the_same_graph():
    module, x = ResNet20(width=4), torch.randn(2, 1, 28, 28)
    assert from_torch(module, x) == from_torch(module, x) == from_torch(module, (x,))


def test_a_module_that_is_called_twice_has_two_nodes_and_one_weight():
    graph = check(Net(lambda m, x: m.fc(m.fc(x).relu()), fc=nn.Linear(4, 4)), torch.randn(2, 4))
    assert [node.op for node in graph.nodes] == ["linear", "relu", "linear"]
    assert len({node.name for node in graph.nodes}) == 3
    assert list(graph.weights) == ["fc.weight", "fc.bias"]


def test_tied_weights_stay_one():
    module = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    module.b.weight = module.a.weight
    graph = check(module, torch.randn(2, 4))
    assert list(graph.weights) == ["a.weight", "a.bias", "b.bias"]
    assert [node.inputs[1] for node in graph.nodes] == ["a.weight", "a.weight"]


def test_weights_that_only_look_tied_stay_two():
    module = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False))
    module.b.weight.data.copy_(module.a.weight.data)
    assert list(check(module, torch.randn(2, 4)).weights) == ["a.weight", "b.weight"]


def test_the_graph_owns_its_weights():
    module = nn.Linear(2, 2)
    graph = from_torch(module, torch.ones(1, 2))
    before = graph.fingerprint
    with torch.no_grad():
        module.weight.zero_()
    assert graph.replace().fingerprint == before


def in_place(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = m.fc(x)
    y += x
    y.mul_(2)
    y.clamp_(-1, 1)
    return y.relu_()


def test_in_place_operations():
    x = torch.randn(2, 4)
    graph = check(Net(in_place, fc=nn.Linear(4, 4)), x)
    assert [node.op for node in graph.nodes] == ["linear", "add", "multiply", "clip", "relu"]
    assert [node.op for node in check(nn.Sequential(nn.ReLU(inplace=True), nn.ReLU6(True)), x).nodes] == [
        "relu",
        "relu6",
    ]


def test_constants_become_weights():
    graph = check(Net(lambda m, x: (x + 1) * 2.5 - 0.5), torch.randn(2, 4))
    assert [w.shape for w in graph.weights.values()] == [(), (), ()]
    assert {w.dtype.name for w in graph.weights.values()} == {"float32"}


def test_a_buffer_is_a_weight():
    module = Net(lambda m, x: x * m.scale)
    module.register_buffer("scale", torch.tensor([1.0, 2.0]))
    assert list(check(module, torch.randn(3, 2)).weights) == ["scale"]


def test_operations_that_do_nothing_leave_no_node():
    graph = check(Net(lambda m, x: x.contiguous().clone().detach().relu()), torch.randn(2, 4))
    assert [node.op for node in graph.nodes] == ["relu"]


def test_several_inputs_and_outputs_keep_their_order():
    def forward(m: nn.Module, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        difference = a - b
        return difference.relu(), a, difference

    graph = check(Net(forward), torch.randn(2, 3), torch.randn(2, 3))
    assert len(graph.inputs) == 2
    assert graph.outputs[1] == graph.inputs[0]
    assert graph.node(graph.outputs[2]).op == "subtract"


def test_defaults_are_left_out_of_attributes():
    graph = check(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, stride=2)), torch.randn(1, 1, 9, 9))
    assert [dict(node.attrs) for node in graph.nodes] == [{}, {"stride": (2, 2)}]


# Shapes


def test_a_dynamic_batch_is_a_symbol_with_the_users_name():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2)).eval()
    graph = from_torch(module, torch.randn(2, 3, 8, 8), dynamic_shapes=({0: "batch"},))
    assert [graph.tensors[name].shape for name in (*graph.inputs, *graph.outputs)] == [("batch", 3, 8, 8), ("batch", 2)]
    x = torch.randn(7, 3, 8, 8)
    torch.testing.assert_close(to_torch(graph)(x), module(x))


def test_a_dynamic_batch_survives_reshapes_that_ask_for_it():
    module = Net(lambda m, x: x.view(x.shape[0], -1).reshape(x.size(0), 2, -1))
    graph = from_torch(module, torch.randn(3, 4, 5), dynamic_shapes=(({0: "N"},),))
    assert graph.tensors[graph.outputs[0]].shape == ("N", 2, 10)
    x = torch.randn(6, 4, 5)
    torch.testing.assert_close(to_torch(graph)(x), module(x))


def test_torchs_own_dims_work():
    dim = torch.export.Dim("rows")
    graph = from_torch(nn.Linear(3, 2), torch.randn(4, 3), dynamic_shapes=({0: dim},))
    assert graph.tensors[graph.outputs[0]].shape == ("rows", 2)


def test_an_exported_program_can_be_imported():
    module = nn.Linear(3, 2)
    program = torch.export.export(module, (torch.randn(1, 3),))
    graph = from_torch(program, name="mine")
    assert graph.nodes == from_torch(module, torch.randn(1, 3)).nodes
    assert graph.name == "mine"


# The module is left alone


@pytest.mark.parametrize("training", [True, False])
def test_the_training_mode_is_left_as_it_was(training):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4)).train(training)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    graph = from_torch(module, torch.randn(2, 4))
    assert module.training is training
    assert [m.training for m in module] == [training] * 3
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert [node.op for node in graph.nodes] == ["linear", "dropout", "batch_norm"]


def test_a_part_that_was_frozen_stays_frozen():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()).train()
    module[0].eval()
    from_torch(module, torch.randn(2, 4))
    assert [m.training for m in (module, *module)] == [True, False, True]


# Errors


def test_an_unknown_operator_is_named_with_its_module_and_line():
    module = nn.Sequential(nn.Linear(4, 4), Net(lambda m, x: torch.fft.fft(x).real))
    with pytest.raises(UnsupportedOperator) as error:
        from_torch(module, torch.randn(2, 4))
    assert "operator aten.fft_fft.default is not in the op table, in module '1'" in str(error.value)
    assert "test_frontend_torch.py" in str(error.value)


def test_an_unknown_form_of_an_operator_is_named_with_its_place():
    with pytest.raises(UnsupportedOperator, match=r"aten\.to\.dtype: a cast to float8_e4m3fn.*in module '0'"):
        from_torch(nn.Sequential(Net(lambda m, x: x.to(torch.float8_e4m3fn)), nn.Identity()), torch.randn(2, 4))
    with pytest.raises(UnsupportedOperator, match=r"aten\.cross_entropy_loss\.default: .* label_smoothing=0\.1"):
        from_torch(nn.CrossEntropyLoss(label_smoothing=0.1), (torch.randn(2, 4), torch.tensor([1, 3])))


def test_what_torch_cannot_trace_is_one_quiet_error_with_its_line(capfd):
    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    module = Net(forward).train()
    with pytest.raises(
        MscError, match=r"torch\.export cannot trace Net: .*data-dependent.*test_frontend_torch\.py:\d+"
    ):
        from_torch(module, torch.randn(2, 4))
    assert module.training
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_model_itself_keeps_its_reason():
    with pytest.raises(MscError, match="cannot trace Linear: "):
        from_torch(nn.Linear(4, 4), torch.randn(2, 5))


def test_only_tensors_can_be_outputs():
    with pytest.raises(UnsupportedOperator, match="only tensors can be outputs"):
        from_torch(Net(lambda m, x: (x, 3)), torch.randn(2, 4))


def test_an_in_place_operator_takes_the_argument_names_of_the_pure_one():
    graph = check(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5, inplace=True), nn.ReLU()), torch.randn(2, 4))
    assert [node.op for node in graph.nodes] == ["linear", "dropout", "relu"]


def test_weights_that_are_parametrized_are_worked_out_in_the_graph():
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3))
    graph = check(layer, torch.randn(2, 3, 8))
    assert {"parametrizations.weight.original0", "parametrizations.weight.original1"} <= graph.weights.keys()
