"""Read JSON and plain data into frozen dataclasses, strictly; one line says what is wrong, and where."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from msc_core.errors import MscError, nearest

T = TypeVar("T")

STRICT = {"extra": "forbid", "strict": True}  # `__pydantic_config__` of every dataclass that is read
_ADAPTERS: dict[type[Any], Any] = {}


def read(kind: type[T], data: Any, error: type[MscError]) -> T:
    """`data`, as JSON would give it, as an object of the dataclass `kind`; raises `error` for anything else."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps(data))  # type: ignore[no-any-return]
    except ValidationError as found:
        raise error(_describe(kind, dict(found.errors(include_url=False)[0]))) from None
    except (TypeError, ValueError, RecursionError) as found:
        raise error(f"not plain data: {found}") from found


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `read` takes."""
    schema: dict[str, Any] = _adapter(kind).json_schema()
    return schema


def _adapter(kind: type[Any]) -> Any:
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _describe(kind: type[Any], complaint: dict[str, Any]) -> str:
    place, what = complaint["loc"], complaint["type"]
    where = ".".join(map(str, place))
    if what in ("unexpected_keyword_argument", "extra_forbidden"):
        schema = json_schema(kind)
        known = {name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", ())}
        return f"{where}: unknown key{nearest(str(place[-1]), known)}"
    if what in ("missing", "missing_argument"):
        return f"{'.'.join(map(str, place[:-1])) or 'top level'}: key {str(place[-1])!r} is missing"
    message = complaint["msg"].removeprefix("Value error, ").replace("Input should", "should")
    found = "" if what == "value_error" else f"; found {str(complaint['input'])[:60]!r}"
    return f"{where}: {message}{found}" if where else f"{message}{found}"
