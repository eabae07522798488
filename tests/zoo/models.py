"""Networks that come as ONNX: trained ones that packages ship, and those that ONNX itself is tested with."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np
import torch

from tests.zoo.network import TOLERANCE, Inputs, Network, floats, path

OCR = {
    "classifier": ("ch_ppocr_mobile_v2.0_cls_infer", (3, 48, 192)),
    "detector": ("ch_PP-OCRv4_det_infer", (3, 96, 96)),
    "recognizer": ("ch_PP-OCRv4_rec_infer", (3, 48, 96)),
}
LIGHT = {
    "bvlc_alexnet": "data_0", "densenet121": "data_0", "inception_v1": "data_0", "inception_v2": "data_0",
    "resnet50": "gpu_0/data_0", "shufflenet": "gpu_0/data_0", "squeezenet": "data_0", "vgg19": "data_0",
    "zfnet512": "gpu_0/data_0",
}  # fmt: skip


def ship(package: str, *parts: str) -> Any:
    """A model file of a package, read."""
    import onnx

    return onnx.load(path(package, *parts))


ONES = re.compile(r"(_s|_riv|_scale|_var)_0$")  # what scales and variances are called


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight: scales and variances near one, other vectors near zero, those of the last layer small."""
    value = torch.randn(shape)
    if len(shape) < 2:
        near = ONES.search(name) or name.endswith("_w_0")
        return (0.1 * value + 1 if near else 0.1 * value).numpy()
    spread = max(1, math.prod(shape[1:])) ** -0.5 * (0.2 if len(shape) == 2 and shape[0] == 1000 else 1.2)
    return (spread * value).numpy()


def light(name: str) -> Any:
    """A network that onnx ships with constants for weights, which are drawn at random here: else it would be blind."""
    from onnx import numpy_helper

    model = ship("onnx", "backend", "test", "data", "light", f"light_{name}.onnx")
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    shapes = {name: value.shape for name, value in known.items() if value.dtype == np.float32}
    filled = [n for n in model.graph.node if n.op_type == "ConstantOfShape" and n.input[0] in known]
    shapes |= {node.output[0]: tuple(known[node.input[0]].tolist()) for node in filled}
    others = [t for t in model.graph.initializer if t.name not in shapes]
    nodes = [node for node in model.graph.node if node not in filled]
    del model.graph.initializer[:], model.graph.node[:]
    drawn = [numpy_helper.from_array(draw(name, shape), name) for name, shape in shapes.items()]
    model.graph.initializer.extend([*others, *drawn])
    model.graph.node.extend(nodes)
    model.ir_version = 8  # from 4 on, an initializer need not be an input
    return model


def without_rate(file: str) -> Any:
    """A network that takes the sampling rate as an input and branches on it, with 16 kHz fixed."""
    from onnx import numpy_helper

    model = ship("silero_vad", "data", file)
    kept = [value for value in model.graph.input if value.name != "sr"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(16000, np.int64), "sr"))
    return model


def lines(height: int, width: int) -> Any:
    """Images of lines of letters, roughly: in noise a detector of text finds none, and all its numbers are tiny."""

    def make(n: int) -> Inputs:
        x = torch.ones(n, 1, height, width)
        cell, high = width // 10, height // 5
        for row in range(n):
            for top in range(height // 6, height - height // 4, height // 3):
                for letter in range(7):
                    left = width // 12 + letter * (cell + width // 40)
                    down, across = torch.randint(high - 2, (2,)).tolist(), torch.randint(cell - 4, (2,)).tolist()
                    for i, j in zip(down, across, strict=True):
                        x[row, 0, top + i : top + i + 2, left : left + cell - 3] = -1
                        x[row, 0, top : top + high, left + j : left + j + 2] = -1
        return {"x": x.repeat(1, 3, 1, 1) + 0.02 * torch.randn(n, 3, height, width)}

    return make


def silero(n: int) -> Inputs:
    return {"input": torch.randn(n, 576) * 0.3, "state": torch.randn(2, n, 128) * 0.1}


def silero_sequence(n: int) -> Inputs:
    return {"input": torch.randn(n, 576) * 0.3, "h": torch.randn(1, 1, 128) * 0.1, "c": torch.randn(1, 1, 128) * 0.1}


NETWORKS = [
    *(
        Network(f"ppocr_{kind}", partial(ship, "rapidocr_onnxruntime", "models", f"{file}.onnx"),
                lines(*shape[1:]) if kind == "detector" else floats(*shape), "rapidocr-onnxruntime", onnx=True,
                tolerance=TOLERANCE if kind == "classifier" else 5e-5)
        for kind, (file, shape) in OCR.items()
    ),
    Network("magika", partial(ship, "magika", "models", "standard_v3_3", "model.onnx"),
            lambda n: {"bytes": torch.randint(0, 256, (n, 2048), dtype=torch.int32)}, "magika", onnx=True),
    Network("basic_pitch", partial(ship, "basic_pitch", "saved_models", "icassp_2022", "nmp.onnx"),
            floats(43844, 1, name="serving_default_input_2:0"), "basic-pitch", onnx=True, tolerance=1e-4),
    Network("silero_vad", partial(without_rate, "silero_vad_op18_ifless.onnx"), silero,
            "silero-vad", axes={"input": 0, "state": 1}, onnx=True),
    Network("silero_vad_16k", partial(without_rate, "silero_vad_16k_op15.onnx"), silero,
            "silero-vad", axes={"input": 0, "state": 1}, onnx=True),
    Network("silero_vad_sequence", partial(ship, "silero_vad", "data", "silero_vad_16k_sequence.onnx"),
            lambda n: silero_sequence(5), "silero-vad", batch=False, onnx=True),
    Network("silero_vad_openvino", partial(ship, "silero_vad", "data", "silero_vad_openvino_16k.onnx"), silero,
            "silero-vad", batch=False, onnx=True),
    *(
        Network(f"light_{name}", partial(light, name),
                floats(3, 224, 224, name=data), "onnx", onnx=True, batch=False)
        for name, data in LIGHT.items()
    ),
]  # fmt: skip
