"""ONNX Runtime as a backend: on the CPU, or with the CUDA provider as `onnxruntime:cuda`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from msc_core.backends.runner import Runner, check_feeds, load_manifest, save_manifest
from msc_core.backends.target import Target
from msc_core.codegen.onnx import to_onnx
from msc_core.errors import MscError, Unavailable
from msc_core.ir import Array, MSCGraph, Node, Tensor, unique, write_atomic

OPTIONS = ("cuda",)
MODEL_FILE = "model.onnx"
EXACT_SUMS = "session.x64quantprecision", "1"
"""Without this option and without VNNI, products of u8 and s8 are summed in 16 bits that saturate: wrong results."""


def available(options: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Whether onnx and onnxruntime are installed, and for `cuda` whether this onnxruntime was built for it."""
    for package in ("onnx", "onnxruntime"):
        if not find_spec(package):
            return False, f"{package} is not installed: pip install {package}"
    if "cuda" in options:
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            return False, "this onnxruntime has no CUDAExecutionProvider: pip install onnxruntime-gpu"
    return True, ""


def build(graph: MSCGraph, target: Target, threads: int) -> Runner:
    """A session on the graph's ONNX model. Raises `Unavailable` for `cuda` without a usable GPU."""
    inputs = tuple(graph.tensors[name] for name in graph.inputs)
    outputs = tuple(graph.tensors[name] for name in graph.outputs)
    return OnnxRuntimeRunner(to_onnx(_untied(graph)).SerializeToString(), target, inputs, outputs, threads)


def load(folder: str | Path, target: Target, threads: int) -> Runner:
    """What `export` wrote. The model is read as bytes, so it cannot pull in other files."""
    manifest = load_manifest(folder)
    model = (Path(folder) / MODEL_FILE).read_bytes()
    return OnnxRuntimeRunner(model, target, manifest["inputs"], manifest["outputs"], threads)


def _untied(graph: MSCGraph) -> MSCGraph:
    """Integer weights with one reader each: without VNNI a session rewrites them, and fails on one it meets again."""
    sources = {n.outputs[0]: n for n in graph.nodes if n.op == "dequantize" and n.inputs[0] in graph.weights}
    nodes, weights, tensors = list[Node](), dict(graph.weights), dict(graph.tensors)
    names, read = {node.name for node in graph.nodes}, {sources[n].inputs[0] for n in graph.outputs if n in sources}

    def again(name: str) -> str:
        own = unique(name, tensors)
        tensors[own] = replace(tensors[name], name=own)
        if name in weights:
            weights[own] = weights[name]
        return own

    for node in graph.nodes:
        inputs = list(node.inputs)
        for i, name in enumerate(inputs):
            if (source := sources.get(name)) and source.inputs[0] in read:
                own, inputs[i] = tuple(map(again, source.inputs)), again(name)
                nodes.append(replace(source, name=unique(source.name, names), inputs=own, outputs=(inputs[i],)))
                names.add(nodes[-1].name)
            elif source:
                read.add(source.inputs[0])
        nodes.append(replace(node, inputs=tuple(inputs)))
    return graph.replace(nodes=tuple(nodes), weights=weights, tensors=tensors)


class OnnxRuntimeRunner(Runner):
    """Runs a session; outputs are told apart by position, since ONNX may need other names than the graph's."""

    def __init__(
        self, model: bytes, target: Target, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], threads: int
    ) -> None:
        import onnxruntime

        target.check_options(OPTIONS)
        for tensor in (*inputs, *outputs):
            if tensor.dtype == "bfloat16":  # NumPy, through which feeds and results go, has no such dtype
                raise MscError(f"onnxruntime cannot exchange {tensor.name!r}: NumPy has no bfloat16")
        self.target, self.inputs, self.outputs = target, inputs, outputs
        self._model = model
        providers = (
            ["CUDAExecutionProvider", "CPUExecutionProvider"] if "cuda" in target.options else ["CPUExecutionProvider"]
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry(*EXACT_SUMS)
        if threads == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if missing := set(providers) - set(onnxruntime.get_available_providers()):
            raise Unavailable(
                f"target '{target}': this onnxruntime has no {missing.pop()}: pip install onnxruntime-gpu"
            )
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=providers)
        except Exception as error:  # its exceptions have no common base of their own
            raise MscError(f"onnxruntime cannot load the model: {error}") from error
        if providers[0] not in self._session.get_providers():
            raise Unavailable(f"target '{target}': onnxruntime finds no usable CUDA device")

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runner.run."""
        if self._session is None:
            raise MscError(f"the runner of '{self.target}' is closed")
        arrays = check_feeds(self.inputs, feeds)
        named = {tensor.name: array for tensor, array in zip(self.inputs, arrays, strict=True)}
        results = self._session.run(None, named)
        return {tensor.name: result for tensor, result in zip(self.outputs, results, strict=True)}

    def export(self, folder: str | Path) -> None:
        """Runner.export: `model.onnx`."""
        write_atomic(Path(folder) / MODEL_FILE, self._model)
        save_manifest(self, folder, [MODEL_FILE])

    def close(self) -> None:
        """Runner.close."""
        self._session = None
