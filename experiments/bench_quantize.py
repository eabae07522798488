"""Int8 after training, against fp32, `onnxruntime.quantization` and NNCF on the same calibration data.

`python -m experiments.bench_quantize [--networks resnet20 ...]` measures the three baselines and two published
networks, prints a row for each and writes their sections of `docs/quantization.md`. Accuracy is of the test data on
ONNX Runtime; latency is the ratio to fp32, int8 and fp32 interleaved, one thread, batch 1.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments import labelled
from experiments.peers import python
from msc_core import MSCGraph, build, from_onnx, measure, to_onnx
from msc_core.backends import Runner, Target, cores
from msc_core.backends.onnxruntime import OnnxRuntimeRunner
from msc_core.data import fashion_mnist
from msc_core.errors import MscError
from msc_core.infer import bind_symbols
from msc_core.ir import Array, write_atomic
from msc_core.tools.quantize.equalize import equalize, find_pairs
from msc_core.tools.quantize.observers import METHODS
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer
from msc_core.tools.quantize.run import outputs
from msc_gym.engine.worker import device

ROOT = Path(__file__).parents[1]
PAGE, BASELINES = ROOT / "docs" / "quantization.md", ROOT / "experiments" / "baselines"
PEER = ("nncf==3.4.0", "onnx==1.23.2", "onnxruntime==1.32.0")
NETWORKS = ("resnet20", "vgg", "mobilenet", "ppocr_classifier", "magika")
SAMPLES = 256
SIMULATED = 2000  # of the test data, in torch
BATCH = 100


@dataclass(frozen=True)
class Subject:
    """A network with calibration data, test data, and what the share of right answers is for test scores."""

    graph: MSCGraph
    calibration: Array
    x: Array
    accuracy: Callable[[Array], float]

    def scores(self, runner: Runner) -> Array:
        """What the network says about the test data."""
        name, output = runner.inputs[0].name, runner.outputs[0].name
        batches = [self.x[i : i + BATCH] for i in range(0, len(self.x), BATCH)]
        return np.concatenate([runner.run({name: batch})[output] for batch in batches])


@dataclass(frozen=True)
class Row:
    """One quantized model; `disagreement` is the share of test data where torch decides otherwise than the engine."""

    name: str
    accuracy: float
    disagreement: float | None = None
    ratio: str = ""

    def text(self, full: float) -> str:
        """As a row of the page."""
        differs = "" if self.disagreement is None else f"{self.disagreement:.2%}"
        return f"| {self.name} | {self.accuracy:.2%} | {100 * (self.accuracy - full):+.2f} | {self.ratio} | {differs} |"


def subject(name: str) -> Subject:
    """One of `NETWORKS`; calibration and test data are disjoint."""
    if name == "ppocr_classifier":
        test = labelled.words(1000, seed=1)
        graph = from_onnx(str(labelled.shipped(*labelled.OCR)))
        graph = bind_symbols(graph, x_2=labelled.HEIGHT, x_3=labelled.WIDTH)
        return Subject(graph, labelled.words(SAMPLES, seed=2).x, test.x, test.accuracy)
    if name == "magika":
        test = labelled.files(1, 3)
        graph = from_onnx(str(labelled.shipped(*labelled.MAGIKA)))
        return Subject(graph, labelled.files(0, 3).x[::2], test.x, test.accuracy)
    data = fashion_mnist()
    split = data.test
    return Subject(
        MSCGraph.load(BASELINES / name), data.train.x[:SAMPLES], split.x,
        lambda scores: float((scores.argmax(axis=1) == split.y).mean()),
    )  # fmt: skip


def ours(subject: Subject) -> Iterator[tuple[str, MSCGraph]]:
    """Every calibration; and min-max equalized, corrected and both, where there is something to equalize or correct."""
    quantizer, equal = Quantizer(subject.graph, subject.calibration), equalize(subject.graph)
    for method in METHODS:
        yield method, quantizer.compress(quantizer.plan(Precision(method=method)))
    yield "minmax, corrected", quantizer.compress(quantizer.plan(), correct=True)
    if find_pairs(equal):
        quantizer = Quantizer(equal, subject.calibration)
        yield "minmax, equalized", quantizer.compress(quantizer.plan())
        yield "minmax, equalized, corrected", quantizer.compress(quantizer.plan(), correct=True)


def peers(subject: Subject) -> Iterator[tuple[str, Runner | str]]:
    """The models of the other tools, or what they raised."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, model = Path(temporary), to_onnx(subject.graph)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        np.savez(folder / "calibration.npz", **{model.graph.input[0].name: subject.calibration})
        command = [python("nncf", *PEER), Path(__file__).with_name("peer_quantize.py"), folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for path in sorted(folder.glob("*,*")):
            yield path.stem, loaded(path.read_bytes(), subject.graph) if path.suffix == ".onnx" else path.read_text()


def loaded(model: bytes, graph: MSCGraph) -> Runner:
    """Another tool's model of the graph as a runner."""
    ends = (tuple(graph.tensors[name] for name in names) for names in (graph.inputs, graph.outputs))
    return OnnxRuntimeRunner(model, Target.parse("onnxruntime"), *ends, cores())


def ratio(runner: Runner, full: Runner) -> str:
    """The latency relative to fp32, with its interval."""
    found = measure(runner, against=full)
    return f"{found.ratio:.2f} ({found.interval[0]:.2f} to {found.interval[1]:.2f}){'' if found.valid else ' unsure'}"


def bench(name: str) -> list[str]:
    """The section of one network."""
    it = subject(name)
    with build(it.graph, "onnxruntime", cores()) as runner:
        full = it.accuracy(it.scores(runner))
    lines = [
        f"## {name}", "",
        f"fp32: {full:.2%} of {len(it.x):,}; {len(it.calibration)} samples for calibration; {machine()}.", "",
        "| | accuracy | points | latency / fp32 | torch differs |", "|---|---|---|---|---|",
    ]  # fmt: skip
    print(f"{name}: {full:.2%}", flush=True)
    with build(it.graph, "onnxruntime") as baseline:
        for label, graph in ours(it):
            with build(graph, "onnxruntime", cores()) as runner:
                scores = it.scores(runner)
            differs, speed = None, ""
            if label == "minmax":
                simulated = [next(iter(v.values())) for v in outputs(graph, graph.outputs[:1], it.x[:SIMULATED])]
                differs = float((np.concatenate(simulated).argmax(1) != scores[:SIMULATED].argmax(1)).mean())
                with build(graph, "onnxruntime") as runner:
                    speed = ratio(runner, baseline)
            lines.append(Row(label, it.accuracy(scores), differs, speed).text(full))
            print(lines[-1], flush=True)
        for label, found in peers(it):
            if isinstance(found, str):
                lines.append(f"| *{label}* | {found} | | | |")
            else:
                try:
                    lines.append(
                        Row(f"*{label}*", it.accuracy(it.scores(found)), None, ratio(found, baseline)).text(full)
                    )
                except MscError as error:
                    lines.append(f"| *{label}* | {str(error)[:80]} | | | |")
            print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> None:
    """Print the tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    networks = parser.parse_args().networks
    torch.set_num_threads(1)  # on a busy machine, several that wait for each other take many times as long
    intro = [
        "# Int8 after training", "",
        "Written by `python -m experiments.bench_quantize`. Weights are int8 with a scale for each output channel,",
        "activations uint8; everything runs on ONNX Runtime. Rows in italics are other tools on the same calibration",
        "data: `onnxruntime.quantization.quantize_static` (per channel, QDQ) and NNCF with its defaults. The last",
        "column is how often the same quantized graph decides otherwise in torch, where integers are floats.", "",
    ]  # fmt: skip
    known = sections(PAGE.read_text()) if PAGE.exists() else {}
    for name in networks:
        known[name] = "\n".join(bench(name))
        write_atomic(PAGE, "\n".join([*intro, *(known[n] for n in NETWORKS if n in known)]).encode())


def sections(page: str) -> dict[str, str]:
    """The sections of the page by network."""
    parts = page.split("\n## ")[1:]
    return {part.split("\n", 1)[0]: f"## {part.rstrip()}\n" for part in parts}


def machine() -> str:
    """The processor, and whether it adds products of bytes in 32 bits."""
    info = Path("/proc/cpuinfo")
    known = "" if not info.exists() else " with VNNI" if "vnni" in info.read_text() else " without VNNI"
    return device() + known


if __name__ == "__main__":
    main()
