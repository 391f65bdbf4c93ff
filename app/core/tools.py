"""Rules for tools: names, sets of tools, what a result may be.

Rules: a tool's exposed name is `{alias}_{operation}`, 1 to 64 of `[A-Za-z0-9_-]`; a set has no two tools of one name; two sets are the same
if they differ in order only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.errors import Conflict, Invalid

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
MOST_TOOLS = 128


def exposed(alias: str, operation: str) -> str:
    """The name under which the model sees a bound tool."""
    return f"{alias}_{operation}"


def check_name(name: str, field: str) -> None:
    """Raises Invalid, naming `field`, for what can't be a tool's exposed name."""
    if not NAME.match(name):
        raise Invalid(f"{field}: {name[:80]!r} is not a tool's name (1 to 64 of A-Z a-z 0-9 _ -)", field)


def check_tools(alias: str, tools: Sequence[Mapping[str, Any]], field: str) -> None:
    """Raises Invalid unless `tools` can be bound under `alias`; Conflict for two of one name."""
    if not NAME.match(alias):
        raise Invalid(f"{field}: the binding {alias[:80]!r} must be 1 to 64 of A-Z a-z 0-9 _ -", field)
    if len(tools) > MOST_TOOLS:
        raise Invalid(f"{field}: at most {MOST_TOOLS} tools", field)
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        check_name(exposed(alias, tool["name"]), f"{field}[{i}].name")
        if not isinstance(tool["input_schema"], (dict, bool)):
            raise Invalid(f"{field}[{i}].input_schema: must be a JSON schema", f"{field}[{i}].input_schema")
        if tool["name"] in seen:
            raise Conflict(f"two tools are named {tool['name']!r}")
        seen.add(tool["name"])


def same_tools(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two sets of descriptors are the same but for their order."""
    return sorted(json.dumps(t, sort_keys=True) for t in a) == sorted(json.dumps(t, sort_keys=True) for t in b)


def text_result(text: str, *, error: bool = False, unknown: bool = False) -> dict[str, Any]:
    """A Result that says `text`."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if error or unknown:
        result["is_error"] = True
    if unknown:
        result["unknown_outcome"] = True
    return result
