"""The published JSON Schemas: `python -m msc_core.schema > docs/plan.schema.json`."""

from __future__ import annotations

import json
from typing import Any

from msc_core.plan import SCHEMA, Plan
from msc_core.reading import json_schema


def plan_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a plan file."""
    found = json_schema(Plan)
    found["properties"] = {"schema": {"const": SCHEMA}, **found["properties"]}
    return {**found, "required": ["schema", *found["required"]]}


if __name__ == "__main__":
    print(json.dumps(plan_schema(), indent=1))
