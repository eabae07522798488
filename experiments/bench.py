"""`make bench`: run every benchmark that this version has, one after the other, each as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

BENCHMARKS = (
    "experiments.bench_tvm",
    "experiments.bench_translate",
    "experiments.bench_surgery",
    "experiments.bench_importance",
    "experiments.bench_recovery",
    "experiments.bench_quantize",
    "experiments.bench_lowbit",
    "experiments.bench_compress",
    "experiments.bench_steps",
)  # modules that `python -m` runs and that print what they measured


def main() -> int:
    """Run them; the exit code says whether all of them finished."""
    failed = 0
    for module in BENCHMARKS:
        if find_spec(module) is None:
            print(f"{module}: not in this version")
            continue
        print(f"== {module}", flush=True)
        failed += subprocess.run([sys.executable, "-m", module], check=False).returncode != 0
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
