"""Parameters of path, query and headers: from text to the type that their schema asks for.

Rules: text that doesn't spell a value of the type is left as text, so that validation refuses it with the same words as
anything else. Only the spelling of JSON counts: `5`, `true`; not `+5`, `True`, `1e3`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.core.errors import Invalid

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})\Z")
_RANGES = {"int32": 2**31, "int64": 2**63}

Json = dict[str, Any]


def schema_of(parameters: Iterable[Json]) -> Json:
    """One object schema for a group of parameters."""
    group = list(parameters)
    return {
        "type": "object",
        "properties": {p["name"]: p["schema"] for p in group},
        "required": [p["name"] for p in group if p.get("required")],
    }


def collect(parameters: Iterable[Json], given: Mapping[str, str | list[str]], resolved: Mapping[str, Json]) -> Json:
    """The parameters that are described and given, coerced, with defaults for those that aren't given. `resolved` has the
    schema of each, without references. Raises Invalid if one is given more than once, or is a number that its format can't
    hold.
    """
    out: Json = {}
    for parameter in parameters:
        name = parameter["name"]
        schema = resolved[name]
        text = given.get(name)
        if text is None:
            if "default" in schema:
                out[name] = schema["default"]
            continue
        if isinstance(text, list):
            raise Invalid(f"{name}: given more than once", name)
        out[name] = _coerce(name, text, schema)
    return out


def _coerce(name: str, text: str, schema: Json) -> Any:
    kind = schema.get("type")
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    if kind == "integer" and _INTEGER.match(text):
        number = int(text)
        bound = _RANGES.get(schema.get("format", "int64"), 2**63)
        if not -bound <= number < bound:
            raise Invalid(f"{name}: {text} is out of range", name)
        return number
    return text
