"""Layouts: every axis of every tensor where layers say so, forward and backward; where they do not, nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import models
from msc_core import MSCGraph, from_torch
from msc_core.layout import infer_layouts
from tests import micro_networks


class Function(nn.Module):
    """A function of some layers and the inputs."""

    def __init__(self, function, **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), function

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x, **dict(self.layers.items()))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.b, self.nb = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c, self.nc = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.down = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))))
        return F.relu(self.nc(self.c(y)) + self.down(x))


class ResNet50(nn.Module):
    """As torchvision's, with fewer blocks and channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.pool = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Bottleneck(8, 4, 1), Bottleneck(16, 8, 2), Bottleneck(32, 16, 2))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.pool(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def layouts(module: nn.Module, *inputs: Tensor, **options: object) -> tuple[MSCGraph, dict[str, str]]:
    graph = infer_layouts(from_torch(module.eval(), inputs, **options))
    return graph, {name: t.layout for name, t in graph.tensors.items()}


@pytest.mark.parametrize("batch", [1, 2])
def test_resnet_is_labelled_in_full_and_its_head_is_nc(batch):
    graph, found = layouts(ResNet50(), torch.randn(batch, 3, 64, 64))
    ranks = {4: {"NCHW", "OIHW"}, 2: {"NC", "OI"}, 1: {"C", "O"}}
    assert all(found[name] in ranks[len(t.shape)] for name, t in graph.tensors.items())
    assert found[graph.inputs[0]] == "NCHW" and found[graph.outputs[0]] == "NC"
    assert found["conv1.weight"] == "OIHW" and found["bn1.running_mean"] == "C" and found["fc.weight"] == "OI"


@pytest.mark.parametrize(
    ("module", "shape"),
    [(models.ResNet20(8), (1, 28, 28)), (models.MobileNet(8), (1, 28, 28)), (micro_networks.Inverted(), (3, 9, 9)),
     (models.vgg(), (1, 28, 28)), (micro_networks.Concat(), (3, 9, 9)), (micro_networks.SqueezeExcite(), (3, 9, 9))],
)  # fmt: skip
def test_networks_of_images_are_labelled_in_full(module, shape):
    _, found = layouts(module, torch.randn(2, *shape), dynamic_shapes=({0: "N"},))
    assert [name for name, layout in found.items() if not layout] == []


def test_a_layout_does_not_change_what_is_computed():
    graph = from_torch(ResNet50().eval(), torch.randn(1, 3, 64, 64))
    labelled = infer_layouts(graph)
    plain = {name: dataclasses.replace(t, layout="") for name, t in labelled.tensors.items()}
    assert labelled.replace(tensors=plain) == graph
    assert infer_layouts(labelled) is labelled


CASES = {  # name: (module, input shapes, {tensor or position among the outputs of the nodes: layout})
    "conv1d": (nn.Conv1d(3, 4, 3), [(2, 3, 9)], {"x": "NCW", "weight": "OIW", "bias": "O", -1: "NCW"}),
    "conv3d": (nn.Conv3d(3, 4, 3), [(2, 3, 5, 5, 5)], {"x": "NCDHW", "weight": "OIDHW", -1: "NCDHW"}),
    "transposed": (nn.ConvTranspose2d(3, 4, 3), [(2, 3, 5, 5)], {"x": "NCHW", "weight": "IOHW", -1: "NCHW"}),
    "grouped": (nn.Conv2d(4, 8, 3, groups=2), [(2, 4, 5, 5)], {"x": "NCHW", "weight": "OIHW", -1: "NCHW"}),
    "pool": (nn.AvgPool1d(2), [(2, 3, 8)], {"x": "NCW", -1: "NCW"}),
    "batch norm alone": (nn.BatchNorm2d(3), [(2, 3, 5, 5)], {"x": "NCHW", "weight": "C", "running_var": "C"}),
    "group norm": (nn.GroupNorm(2, 4), [(2, 4, 5, 5)], {"x": "NCHW", "weight": "C", -1: "NCHW"}),
    "linear": (nn.Linear(4, 3), [(2, 4)], {"x": "NC", "weight": "OI", "bias": "O", -1: "NC"}),
    "linear of a sequence": (nn.Linear(4, 3), [(2, 5, 4)], {"x": "NTC", -1: "NTC"}),
    "layer norm": (nn.LayerNorm(4), [(2, 5, 4)], {"x": "NTC", "weight": "C", "bias": "C", -1: "NTC"}),
    "lstm": (nn.LSTM(4, 3), [(5, 2, 4)], {"x": "TNC", "weight_ih_l0": "OI", "bias_hh_l0": "O"}),
    "lstm, batch first": (nn.LSTM(4, 3, batch_first=True), [(2, 5, 4)], {"x": "NTC"}),
    "gru": (nn.GRU(4, 3, bidirectional=True), [(5, 2, 4)], {"x": "TNC", "weight_hh_l0_reverse": "OI"}),
    "pixel shuffle": (nn.PixelShuffle(2), [(2, 8, 5, 5)], {"x": "NCHW", -1: "NCHW"}),
    "attention": (Function(F.scaled_dot_product_attention), [(2, 3, 5, 4)] * 3,
                  {"x_0": "NHTD", "x_2": "NHTD", -1: "NHTD"}),
    "to channels last": (Function(lambda x, c: c(x).permute(0, 2, 3, 1), c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)],
                         {-1: "NHWC"}),
    "from channels last": (Function(lambda x, c: c(x.permute(0, 3, 1, 2)), c=nn.Conv2d(3, 4, 3)), [(2, 5, 5, 3)],
                           {"x_0": "NHWC", -1: "NCHW"}),
    "linear on channels last": (
        Function(lambda x, c, f: f(c(x).movedim(1, -1)), c=nn.Conv2d(3, 4, 3), f=nn.Linear(4, 6)), [(2, 3, 5, 5)],
        {-1: "NHWC"}),
    "backward through activations": (
        Function(lambda x, y, c: c(torch.tanh(x) * y.relu()), c=nn.Conv1d(3, 4, 3)), [(2, 3, 9), (2, 3, 9)],
        {"x_0": "NCW", "x_1": "NCW"}),
    "flattened": (Function(lambda x, c, f: f(c(x).flatten(1)), c=nn.Conv2d(3, 4, 3), f=nn.Linear(36, 2)),
                  [(2, 3, 5, 5)], {1: "NC", -1: "NC"}),
    "patches": (Function(lambda x, c: c(x).flatten(2).transpose(1, 2), c=nn.Conv2d(3, 4, 2, 2)), [(2, 3, 8, 8)],
                {1: "NCT", -1: "NTC"}),
    "reduced": (Function(lambda x, c: c(x).mean((2, 3)), c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)], {-1: "NC"}),
    "reduced and kept": (Function(lambda x, c: c(x).amax(1, keepdim=True), c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)],
                         {-1: "NCHW"}),
    "concatenated": (Function(lambda x, y, c: torch.cat((c(x), y), 1), c=nn.Conv2d(3, 4, 3)),
                     [(2, 3, 5, 5), (2, 1, 3, 3)], {"x_1": "NCHW", -1: "NCHW"}),
    "split": (Function(lambda x, c: c(x).chunk(2, 1)[1], c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)], {-1: "NCHW"}),
    "sliced": (Function(lambda x, c: c(x)[:, 1:, ::2], c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)], {-1: "NCHW"}),
    "squeezed": (Function(lambda x, c: c(x).squeeze(-1), c=nn.Conv2d(3, 4, (3, 5))), [(2, 3, 5, 5)], {-1: "NCH"}),
    "expanded": (Function(lambda x, c: c(x.unsqueeze(2)), c=nn.Conv2d(3, 4, 1)), [(2, 3, 5)], {"x_0": "NCW"}),
    "softmax": (Function(lambda x, c: c(x).softmax(1), c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)], {-1: "NCHW"}),
    "padded": (Function(lambda x, c: c(F.pad(x, (1, 2, 0, 1))), c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5)], {"x_0": "NCHW"}),
    "scaled by a gate": (
        Function(lambda x, c, f: c(x) * f(c(x).mean((2, 3), keepdim=True)), c=nn.Conv2d(3, 4, 3), f=nn.Conv2d(4, 4, 1)),
        [(2, 3, 5, 5)], {-1: "NCHW"}),
    "broadcast": (Function(lambda x, y, c: c(x) + y, c=nn.Conv2d(3, 4, 3)), [(2, 3, 5, 5), (4, 1, 1)], {"x_1": "CHW"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layouts(name):
    module, shapes, expected = CASES[name]
    graph, found = layouts(module, *(torch.randn(s) for s in shapes))
    outputs = [found[node.outputs[0]] for node in graph.nodes]
    names = dict(zip(["x"] if len(shapes) == 1 else [], graph.inputs, strict=False))
    names |= {f"x_{i}": input_name for i, input_name in enumerate(graph.inputs)}
    assert {k: outputs[k] if isinstance(k, int) else found[names.get(k, k)] for k in expected} == expected


def test_embeddings_label_tokens():
    module = nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    graph, found = layouts(module, torch.zeros(2, 5, dtype=torch.int64))
    assert found[graph.inputs[0]] == "NT" and found["0.weight"] == "IO" and found[graph.outputs[0]] == "NTC"


def test_a_transformer_knows_its_batch_from_its_attention():
    """The encoder is given (t, n, c): convention would guess the batch first."""
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    graph, found = layouts(layer, torch.randn(7, 3, 8))
    assert found[graph.inputs[0]] == found[graph.outputs[0]] == "TNC"


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: torch.relu(x) + 1, [(2, 3, 4, 5)]),
        (lambda x, y: x @ y, [(2, 3, 4), (2, 4, 5)]),
        (lambda x: x.reshape(4, 3, 2), [(2, 3, 4)]),
    ],
)
def test_what_no_layer_names_stays_empty(function, shapes):
    graph, found = layouts(Function(function), *(torch.randn(s) for s in shapes))
    assert set(found.values()) == {""} and infer_layouts(graph) is graph


def test_layers_that_disagree_leave_nothing():
    conv = nn.Conv2d(4, 4, 1)
    module = Function(lambda x, a, b: a(x) + b(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), a=conv, b=nn.Conv2d(4, 4, 1))
    graph, found = layouts(module, torch.randn(2, 4, 4, 4))
    assert found[graph.inputs[0]] == "" and found[graph.outputs[0]] == ""


def test_a_tied_table_has_no_one_layout():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids))

    _, found = layouts(Tied(), torch.zeros(2, 5, dtype=torch.int64))
    assert found["table.weight"] == ""


def test_scores_of_attention_have_two_equal_axes_and_no_layout():
    module = Function(
        lambda x, q, k: q(x) @ k(x).transpose(1, 2), q=nn.Linear(4, 4), k=nn.Linear(4, 4)
    )  # fmt: skip
    graph, found = layouts(module, torch.randn(2, 5, 4))
    assert found[graph.inputs[0]] == "NTC" and found[graph.outputs[0]] == ""


def test_a_layout_that_is_given_counts():
    graph = from_torch(Function(lambda x: torch.relu(x).permute(0, 2, 1)), torch.randn(2, 3, 4))
    (name,) = graph.inputs
    given = graph.replace(tensors={**graph.tensors, name: dataclasses.replace(graph.tensors[name], layout="NTC")})
    found = infer_layouts(given)
    assert found.tensors[graph.outputs[0]].layout == "NCT" and found.tensors[name].layout == "NTC"
