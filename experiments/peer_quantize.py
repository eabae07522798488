"""Other quantizers on a model, run in an environment of their own: `python peer_quantize.py FOLDER`.

Reads `model.onnx` and `calibration.npz` from the folder and writes a quantized model for each tool and setting. What a
tool raises goes into `<name>.error` instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx


class Samples:
    """One sample after the other, as ONNX Runtime's calibration reads them."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        count = len(next(iter(arrays.values())))
        self.left = iter([{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next sample, None behind the last."""
        return next(self.left, None)


def static(folder: Path, arrays: dict[str, np.ndarray], name: str, method: str) -> None:
    """`quantize_static` as its documentation recommends for x86: QDQ, u8 and s8, scales by channel."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    quantize_static(
        folder / "prepared.onnx", folder / f"{name}.onnx", Samples(arrays), QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod[method],
    )  # fmt: skip


def nncf(folder: Path, arrays: dict[str, np.ndarray], name: str, preset: str) -> None:
    """`nncf.quantize` with its defaults, fast bias correction among them."""
    import nncf

    model = onnx.load(folder / "prepared.onnx")
    count = len(next(iter(arrays.values())))
    samples = [{key: array[i : i + 1] for key, array in arrays.items()} for i in range(count)]
    found = nncf.quantize(model, nncf.Dataset(samples), preset=nncf.QuantizationPreset(preset), subset_size=count)
    onnx.save(found, folder / f"{name}.onnx")


TOOLS: dict[str, tuple[Callable[..., None], str]] = {
    "quantize_static, minmax": (static, "MinMax"),
    "quantize_static, percentile": (static, "Percentile"),
    "nncf, performance": (nncf, "performance"),
    "nncf, mixed": (nncf, "mixed"),
}


def main() -> None:
    """All tools."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folder = Path(sys.argv[1])
    with np.load(folder / "calibration.npz") as arrays:
        samples = dict(arrays)
    quant_pre_process(folder / "model.onnx", folder / "prepared.onnx", skip_symbolic_shape=True)  # folds batch norms
    for name, (tool, setting) in TOOLS.items():
        try:
            tool(folder, samples, name, setting)
        except Exception as error:  # a tool may fail in any way; that is a result
            (folder / f"{name}.error").write_text(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")


if __name__ == "__main__":
    main()
