"""A call of a Relay operator, as the functions that translate it see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msc_core.errors import UnsupportedOperator, nearest
from msc_core.frontends.layouts import standard_layout
from msc_core.frontends.relax import RELAX
from msc_core.ir import Tensor
from msc_core.ops import Source


@dataclass(frozen=True)
class RelayCall(Source):
    """A `Source` that can also say things in the words of Relax, and make tensors of intermediate results.

    `release` is the version of TVM that saved it: conventions changed.
    """

    release: tuple[int, int] = (0, 0)
    emit: Callable[[Any, str], Any] = lambda value, word: value

    def relax(self, op: str, *x: Any, **attrs: Any) -> Any:
        """What a Relax operator of these arguments is in our words."""
        if op not in RELAX:
            raise UnsupportedOperator(
                f"Relax's {op} is not in the op table{nearest(op, RELAX).split(' known')[0].rstrip(';')}"
            )
        return RELAX[op](Source(op, tuple(x), attrs, self.known, self.outputs))

    def windowed(self) -> Any:
        """The Relax operator of the same name over windows, in any layout."""
        x, attrs, back = standard_layout(self.op, self.x, self.attrs, self.emit)
        return back(self.relax(self.op, *x, **attrs))

    def as_tensor(self, value: Any, word: str) -> Tensor:
        """A value that is a tensor, or becomes one now."""
        found: Tensor = value if isinstance(value, Tensor) else self.emit(value, word)
        return found


Translator = Callable[[RelayCall], Any]
