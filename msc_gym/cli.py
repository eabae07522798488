"""The command line. Exit codes: 0 done, 1 failed, 2 the user's mistake, 130 interrupted; errors are one line on stderr.

`--debug`, anywhere, shows the traceback of an error too.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msc_core.errors import MscError
from msc_gym import search_commands, store_commands, tool_commands
from msc_gym.options import Inputs, Model

if TYPE_CHECKING:
    from msc_core.channels import ChannelGroup
    from msc_core.ir import MSCGraph

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130
DEBUG = "--debug"

app = typer.Typer(
    name="msc-gym",
    help="Compress trained networks: prune, search, measure, export.",
    epilog="Exit codes: 0 done, 1 failed, 2 your mistake, 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command line and leave with its exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of torch cost tenfold where cores are shared
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Every outcome is said here, so that no command needs to."""
    debug = DEBUG in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows a question mark, no traceback
    try:
        code = app([a for a in arguments if a != DEBUG] or ["--help"], prog_name="msc-gym", standalone_mode=False)
        sys.stdout.flush()
        return _interrupted() if code == INTERRUPTED else int(code or DONE)
    except (MscError, typer.TyperException) as error:
        return _complain(error, MISTAKE, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:  # `msc-gym inspect ... | head`
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _complain(error, FAILED, debug)


def _complain(error: Exception, code: int, debug: bool) -> int:
    """One line, without control characters, whatever a hostile file made the error say."""
    from msc_gym.display import printable

    if debug:
        traceback.print_exception(error)
    text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    line = printable(" ".join(text.split())) or type(error).__name__
    if code == FAILED:
        line = f"{type(error).__name__}: {line}" + ("" if debug else f" ({DEBUG} shows the traceback)")
    print(f"error: {line}", file=sys.stderr)
    return code


def _interrupted() -> int:
    print("\ninterrupted: the same command continues where it stopped", file=sys.stderr)
    return INTERRUPTED


@app.callback()
def _options(debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False) -> None:
    """`run` acts on --debug; it is here to be in the help."""


@app.command(epilog="Example: msc-gym doctor")
def doctor() -> None:
    """Say what this machine has: versions, processor, data, and backends, each tried on a small network."""
    from msc_gym.doctor import diagnose

    console, section, ready = Console(highlight=False), "", True
    for check in diagnose():
        if check.section != section:
            section = check.section
            console.print(Text(f"\n{section}", style="bold"))
        sign = {True: "[green]✓[/]", False: "[red]✗[/]" if check.essential else "[yellow]–[/]", None: " "}[check.ok]  # noqa: RUF001
        console.print(sign, Text(f"{check.name:<20} {check.detail}"), soft_wrap=True)
        ready &= check.ok is not False or not check.essential
    console.print(Text("\nready" if ready else "\nnot ready: something essential does not work", style="bold"))
    if not ready:
        raise typer.Exit(FAILED)


@app.command(epilog="Example: msc-gym inspect experiments/baselines/resnet20 --html net.html · with code: "
             "msc-gym inspect experiments.models:vgg --input 1,28,28")  # fmt: skip
def inspect(
    model: Model,
    inputs: Inputs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the graph here.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to look around in here.", show_default=False)] = None,
    prototxt: Annotated[Path | None, typer.Option(help="Write it for Netron here.", show_default=False)] = None,
) -> None:
    """Show what a model consists of, what it costs, and which channels can be pruned."""
    from msc_core.channels import channel_groups
    from msc_core.ir import write_atomic
    from msc_gym.loading import load_graph, sample

    graph = load_graph(model, [sample(text) for text in inputs or ()])
    groups = channel_groups(graph)
    if as_json:
        print(json.dumps(_inspection(graph, groups), indent=1))
    else:
        _print_inspection(graph, groups)
    for path, draw in ((svg, graph.to_svg), (html, graph.to_html), (prototxt, graph.to_prototxt)):
        if path is not None:
            write_atomic(path, draw().encode())


@app.command(epilog="Example: msc-gym translate net.onnx --to torch --out translated")
def translate(
    model: Model,
    to: Annotated[str, typer.Option(help="torch, onnx or relax.")],
    out: Annotated[Path, typer.Option(help="Folder for what is written.")],
    inputs: Inputs = None,
    opset: Annotated[int | None, typer.Option(help="Of the ONNX model.", show_default=False)] = None,
    batch: Annotated[
        str, typer.Option(help="A name for the batch axis, or a fixed size; by default N for code, as it is for ONNX.")
    ] = "",
    fuse: Annotated[bool, typer.Option("--fuse", help="Make whole layers of small operators first.")] = False,
) -> None:
    """Write a model for another framework, run what was written, and compare it with the original on random inputs."""
    from msc_gym.display import printable
    from msc_gym.loading import open_source, sample
    from msc_gym.translate import translate as run_translate

    source = open_source(model, [sample(text) for text in inputs or ()], batch)
    found = run_translate(source.fused() if fuse else source, to, out, opset)
    for path in found.files:
        print(f"{printable(path)}: {_size(path)}")
    sizes = "".join(f", {symbol}={size}" for symbol, size in found.sizes.items())
    print(f"largest difference from the original on random inputs{sizes}: {found.difference:.2g} of the output's range")
    if not found.ok:
        print(f"error: that is more than rounding explains ({found.tolerance:.0e})", file=sys.stderr)
        raise typer.Exit(FAILED)


def _size(path: Path) -> str:
    from msc_gym.report import text

    return text.size(path.stat().st_size)


def _inspection(graph: MSCGraph, groups: list[ChannelGroup]) -> dict[str, object]:
    from dataclasses import asdict

    from msc_core.cost import cost

    described = [
        {
            "name": g.name, "size": g.size, "divisor": g.divisor, "reason": g.reason, "nodes": list(g.nodes),
            "members": [
                {"node": m.node, "tensor": m.tensor, "axis": m.axis, "contracted": m.contracted} for m in g.members
            ],
        }
        for g in groups
    ]  # fmt: skip
    return {**graph.inspect(), "fingerprint": graph.fingerprint, "cost": asdict(cost(graph)), "groups": described}


def _print_inspection(graph: MSCGraph, groups: list[ChannelGroup]) -> None:
    from msc_core.cost import cost
    from msc_gym.display import printable
    from msc_gym.report import text

    found, total, console = graph.inspect(), cost(graph), Console(highlight=False)
    lines = {
        "inputs": ", ".join(f"{name} {what}" for name, what in found["inputs"].items()),
        "outputs": ", ".join(f"{name} {what}" for name, what in found["outputs"].items()),
        "operators": ", ".join(f"{count} {op}" for op, count in found["ops"].items()),
        "cost": f"{total.macs:,} MACs, {total.params:,} parameters, {text.size(total.bytes)}",
        "fingerprint": graph.fingerprint[:16],
    }
    console.print(Text(printable(graph.name), style="bold"))
    for name, value in lines.items():
        console.print(Text(f"{name:<12}"), Text(printable(value)), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("channel group", "size", "step", "layers, or why it cannot be pruned"):
        table.add_column(head, justify="right" if head in ("size", "step") else "left", overflow="fold")
    for g in groups:
        last = Text(f"pinned: {printable(g.reason)}", style="dim") if g.reason else Text(printable(", ".join(g.nodes)))
        table.add_row(Text(printable(g.name)), str(g.size), str(g.divisor), last)
    console.print(Text(), table)


app.command(epilog="Example: msc-gym search experiments/quickstart.yaml --agent amc --trials 20")(
    search_commands.search
)
app.command(epilog="Example: msc-gym train experiments/quickstart.yaml --agent ppo --out runs/policy"
            )(search_commands.train)  # fmt: skip
app.command(epilog="Example: msc-gym compress experiments/quickstart.yaml · with your own network: "
            "msc-gym compress task.yaml --model package.models:net --weights net.safetensors"
            )(search_commands.compress)  # fmt: skip
app.command(epilog="Example: msc-gym validate runs/quickstart")(search_commands.validate)
app.command(epilog="Example: msc-gym report runs/quickstart")(search_commands.report)
stores = typer.Typer(help="Look into a store of trials, or get them out.", no_args_is_help=True)
stores.command(epilog="Example: msc-gym store info runs/quickstart")(store_commands.info)
stores.command(epilog="Example: msc-gym store export runs/quickstart --out trials.csv")(store_commands.export)
app.add_typer(stores, name="store")
app.command(epilog="Example: msc-gym prune experiments/baselines/resnet20 --density 0.5 --data fashion_mnist "
            "--out runs/pruned")(tool_commands.prune)  # fmt: skip
app.command(epilog="Example: msc-gym quantize experiments/baselines/resnet20 --data fashion_mnist "
            "--out runs/quantized")(tool_commands.quantize)  # fmt: skip
app.command(epilog="Example: msc-gym apply runs/pruned/plan.json experiments/baselines/resnet20 --data fashion_mnist "
            "--out runs/applied")(tool_commands.apply)  # fmt: skip
app.command(epilog="Example: msc-gym track experiments/baselines/resnet20 runs/quantized/graph --target onnxruntime "
            "--data fashion_mnist")(tool_commands.track)  # fmt: skip
app.command(epilog="Example: msc-gym finetune runs/pruned/graph --teacher experiments/baselines/resnet20 "
            "--data fashion_mnist --out runs/tuned")(tool_commands.finetune)  # fmt: skip


if __name__ == "__main__":
    main()
