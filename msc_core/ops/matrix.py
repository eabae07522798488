"""The support matrix of the op table, as Markdown: `python -m msc_core.ops.matrix > docs/ops.md` writes it."""

from __future__ import annotations

from collections.abc import Iterable

from msc_core.ops import FAMILIES, OPS, Op, Refuse

TARGETS = ("torch", "onnx", "relax")
HEAD = """\
# Operators

Generated from the op table: `python -m msc_core.ops.matrix > docs/ops.md`. Every row is imported from the operators
named here (and each in-place variant of ATen's), and emitted for the targets that are marked; what a framework says in
pieces is composed of rows. A target may refuse single forms of an operator; the error names the node and the form.
"""


def matrix() -> str:
    """The whole page."""
    lines = [HEAD, _summary()]
    for family, rows in FAMILIES.items():
        lines += [
            f"\n## {family.capitalize()}\n",
            "| operator | attributes | to torch, ONNX, Relax | from ATen | from ONNX | from Relax | in MSC |",
            "|---|---|---|---|---|---|---|",
            *(_line(op) for op in rows),
        ]
    return "\n".join(lines) + "\n"


def _summary() -> str:
    counts = {
        "ATen overloads": {name for op in OPS.values() for name in op.aten},
        "ONNX operators": {name for op in OPS.values() for name in op.from_onnx},
        "Relax operators": {name for op in OPS.values() for name in op.from_relax},
    }
    imported = ", ".join(f"{len(names)} {what}" for what, names in counts.items())
    emitted = ", ".join(f"{t} {sum(_reason(op, t) == '' for op in OPS.values())}" for t in TARGETS)
    return f"{len(OPS)} rows; imported from {imported}; emitted for {emitted}."


def _line(op: Op) -> str:
    refused = {target: reason for target in TARGETS if (reason := _reason(op, target))}
    marks = " ".join("no" if target in refused else "yes" for target in TARGETS)
    notes = "".join(f"; {target}: {reason}" for target, reason in refused.items())
    attrs = ", ".join(f"{name}={_default(value)}" for name, value in op.attrs.items())
    aten = sorted({name.split(".")[0] for name in op.aten})
    cells = [f"`{op.name}`", attrs and f"`{attrs}`", marks + notes, _names(aten), _names(op.from_onnx)]
    return _row([*cells, _names(op.from_relax), op.msc and f"`{op.msc}`"])


def _reason(op: Op, target: str) -> str:
    """Why a target never has the operator; empty if it does."""
    emit = getattr(op, target)
    return emit.reason if isinstance(emit, Refuse) else ""


def _default(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(matrix(), end="")
