"""Every error that this project raises on purpose is an `MscError`; the command line prints it as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MscError(Exception):
    """Something that the user can mend; the text says what was found, what was expected and where."""


class UnsupportedOperator(MscError):
    """A model uses an operator that the op table lacks, or in a form that it lacks."""


class InvalidGraph(MscError):
    """A graph, on disk or in memory, breaks a rule of the IR."""


class InvalidPlan(MscError, ValueError):
    """A plan or strategy does not fit the graph that it is applied to."""


class Unavailable(MscError):
    """A backend or an optional package is missing on this machine; the text names what to install."""


class DeadlineExceeded(MscError):
    """A child process was killed because it ran past its time limit."""


def nearest(word: str, known: Iterable[str], every: bool = False) -> str:
    """Return `"; did you mean 'x'?"` for the known word nearest to `word`; if there is none, or if `every`, the list.

    >>> nearest("onnxruntme", ["torch", "onnxruntime"])
    "; did you mean 'onnxruntime'?"
    >>> nearest("zzz", ["torch", "tvm"])
    '; known: torch, tvm'
    >>> nearest("tvn", ["torch", "tvm"], every=True)
    "; did you mean 'tvm'? known: torch, tvm"
    """
    known = sorted(known)
    match = difflib.get_close_matches(word, known, n=1)
    meant = f"; did you mean {match[0]!r}?" if match else ""
    return meant if match and not every else f"{meant or ';'} known: {', '.join(known)}"
