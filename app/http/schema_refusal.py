"""Why a value was refused, in one sentence that names the field: `config.tools[0]: 5 is not of type 'string'`.

Rules: of what the caller sent only short plain values are repeated, never an array or an object and nothing that may be a
secret, since the sentence ends up in logs of clients. Both validators' errors are first brought to one form, so that they
read the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import jsonschema_rs
import orjson

from app.core.errors import Invalid
from app.http.schema_documents import NO_NUL, Json, resolve

_SHOWN = 60
_PLAIN = re.compile(r"[A-Za-z0-9_$-]{1,64}\Z")
_SECRET = frozenset({"credentials", "auth", "p256dh", "token"})

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value at `path` that breaks `keyword`, which asked for `expected`. For `required` and `additionalProperties`, `names`
    are at fault.
    """

    path: Path
    keyword: str
    expected: Any
    value: Any
    names: tuple[str, ...] = ()


def from_jsonschema(error: jsonschema.ValidationError) -> Refusal:
    """The refusal that an error of `jsonschema` stands for."""
    keyword = str(error.validator)
    names: tuple[str, ...] = ()
    value: Any = error.instance
    expected: Any = error.validator_value
    if keyword == "required":
        names = tuple(n for n in expected if n not in value)[:1]
    elif keyword == "additionalProperties" and isinstance(error.schema, dict):
        names = tuple(n for n in value if n not in error.schema.get("properties", {}))
    return Refusal(tuple(error.absolute_path), keyword, expected, value, names)


def from_rust(error: jsonschema_rs.ValidationError) -> Refusal:
    """The refusal that an error of `jsonschema-rs` stands for."""
    keyword = error.kind.name
    expected: Any = error.kind.value
    names: tuple[str, ...] = ()
    if keyword == "required":
        names = (str(expected),)
    elif keyword == "additionalProperties":
        names = tuple(str(n) for n in expected)
    return Refusal(tuple(error.instance_path), keyword, expected, error.instance, names)


def too_many_items(document: Json, schema: Json, value: Any, path: Path = ()) -> Refusal | None:
    """The first array in `value` that is longer than its schema allows, found without looking at anything else."""
    schema = resolve(document, schema)
    if isinstance(value, list):
        most = schema.get("maxItems")
        if most is not None and len(value) > most:
            return Refusal(path, "maxItems", most, value)
        parts: list[tuple[str | int, Any]] = list(enumerate(value))
        below = [(part, item, schema.get("items")) for part, item in parts]
    elif isinstance(value, dict):
        below = [(part, item, schema.get("properties", {}).get(part)) for part, item in value.items()]
    else:
        return None
    for part, item, inner in below:
        if isinstance(inner, dict) and isinstance(item, (list, dict)):
            found = too_many_items(document, inner, item, (*path, part))
            if found is not None:
                return found
    return None


def invalid(refusal: Refusal, root: str) -> Invalid:
    """The error to raise. `root` is what to call the whole value, such as `body`."""
    path = refusal.path + refusal.names[:1]
    field = where(path)
    return Invalid(f"{field or root}: {_reason(refusal)}", field or None)


def where(path: Sequence[str | int]) -> str:
    """`("config", "tools", 0)` as `config.tools[0]`; the empty path as an empty string."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            name = part if _PLAIN.match(part) else _text(part)
            out += f".{name}" if out else name
    return out


def _reason(refusal: Refusal) -> str:
    expected = refusal.expected
    match refusal.keyword:
        case "required":
            return "is missing"
        case "additionalProperties":
            others = len(refusal.names) - 1
            return "unknown field" + (f" (and {others} more)" if others > 0 else "")
        case "type":
            kinds = [expected] if isinstance(expected, str) else list(expected)
            return f"{_shown(refusal)} is not of type {' or '.join(repr(str(k)) for k in kinds)}"
        case "enum":
            return f"{_shown(refusal)} is not one of {_text(list(expected), 400)}"
        case "const":
            return f"{_shown(refusal)} is not {_text(expected)}"
        case "pattern" if expected == NO_NUL:
            return "holds a NUL character"
        case "pattern":
            return f"{_shown(refusal)} does not match {expected}"
        case "minimum":
            return f"{_shown(refusal)} is less than {expected}"
        case "maximum":
            return f"{_shown(refusal)} is more than {expected}"
        case "minItems":
            return f"has {len(refusal.value)} items, at least {expected} are needed"
        case "maxItems":
            return f"has {len(refusal.value)} items, at most {expected} are allowed"
        case "minLength":
            return f"is shorter than {expected} character{'' if expected == 1 else 's'}"
        case "maxLength":
            return f"is longer than {expected} characters"
        case "oneOf":
            return _one_of(refusal)
        case "anyOf":
            return f"{_shown(refusal)} has none of the allowed forms"
        case other:
            return f"{_shown(refusal)} breaks the rule {_text(other)}"


def _one_of(refusal: Refusal) -> str:
    """Forms that only say which field must be there are named; others aren't worth a guess."""
    names: list[str] = []
    for branch in refusal.expected:
        if not isinstance(branch, dict) or set(branch) != {"required"}:
            return f"{_shown(refusal)} has none, or more than one, of the allowed forms"
        names += branch["required"]
    return f"exactly one of {', '.join(repr(n) for n in names)} is needed"


def _shown(refusal: Refusal) -> str:
    if isinstance(refusal.value, dict):
        return "an object"
    if isinstance(refusal.value, list):
        return "an array"
    if _SECRET.intersection(part for part in refusal.path if isinstance(part, str)):
        return "what was given"
    return _text(refusal.value)


def _text(value: Any, limit: int = _SHOWN) -> str:
    if isinstance(value, str) and len(value) > limit:
        value = value[:limit] + "…"
    return orjson.dumps(value).decode()
