"""Rules for tools: names, sets of tools, what a result may be.

Rules: a tool's exposed name is `{alias}_{operation}`, 1 to 64 of `[A-Za-z0-9_-]`; a set has no two tools of one name; two sets are the same
if they differ in order only. JSON that comes from a tool is no deeper and larger than what a client may send.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.errors import Conflict, Invalid

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
MOST_TOOLS = 128
MAX_DEPTH = 64
"""Levels of arrays and objects in what a tool says: as many as in a request's body. orjson reads 1,024 of them but writes only 254."""
MAX_VALUES = 50_000


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


def bounded(value: Any) -> bool:
    """Whether a JSON value is within `MAX_DEPTH` and `MAX_VALUES`; level by level, so that no recursion is at the mercy of a sender."""
    level, count = [value], 1
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            return True
        count += len(deeper)
        if count > MAX_VALUES:
            return False
        level = deeper
    return False


def result_fault(value: Any) -> str | None:
    """Why a JSON value is no Result of the Brain contract; None if it is one."""
    if not isinstance(value, dict):
        return "it is not an object"
    if not bounded(value):
        return "it has too many levels or values"
    kinds: dict[str, type] = {"content": list, "is_error": bool, "unknown_outcome": bool, "structured_content": object}
    for name, member in value.items():
        if name not in kinds:
            return f"{name[:80]!r} is not a field of it"
        if not isinstance(member, kinds[name]):
            return f"{name} has the wrong type"
    if "content" not in value:
        return "content is missing"
    for i, part in enumerate(value["content"]):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return f"content[{i}] is not an object with a type"
        if not all(name in ("type", "text", "data", "mime_type") and isinstance(v, str) for name, v in part.items()):
            return f"content[{i}] has a field that it can't have"
    return None
