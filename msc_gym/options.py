"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(metavar="TASK.yaml", help="A job file; see experiments/quickstart.yaml.")]
Model = Annotated[str, typer.Argument(help="A folder of a saved graph, an .onnx file, or module:function.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="Shape of one sample, for module:function: 1,28,28 or int64:128; once per input.",
                 show_default=False),
]  # fmt: skip
Trials = Annotated[int | None, typer.Option(min=1, help="Trials per agent, instead of the job's.", show_default=False)]
Workers = Annotated[
    str, typer.Option(help='How many processes measure, or a pool: "processes:4", "ray:4".', show_default=False)
]
