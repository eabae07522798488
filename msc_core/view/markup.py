"""Elements of HTML and SVG as nested calls. Text is escaped unless it is `Markup` already, so nothing can slip in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold
VOID = frozenset({"meta", "input", "circle", "line", "path", "rect", "use"})


class Markup(str):
    """Text that is markup; only `el`, `join` and constants make it."""


Child = str | Iterable["Child"] | None


def el(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. Attributes: `_` stands for `-`, a trailing one is dropped (`class_`), `None` leaves it out.

    >>> el("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = join(children)
    if name in VOID and not content:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{content}</{name}>")


def join(children: Child) -> Markup:
    """Children one after the other, escaped where they are not markup."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return escape(children)
    return Markup("".join(join(child) for child in children))


def escape(text: str) -> Markup:
    """Text for content or attributes of HTML and XML alike; what XML cannot hold becomes a replacement character."""
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", text)))


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
