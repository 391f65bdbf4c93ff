"""The bytes of a JSON body, decoded within bounds.

Rules: what comes out is plain JSON that can be written out again: UTF-8, finite numbers, no name twice in an object, no
deeper than `MAX_DEPTH` and no more values than `MAX_VALUES`. The bounds are there because each value costs time in a process
that serves others too (0.25 us to count, 10 us to explain, measured); they are far above what a client of the contracts
sends.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from app.core.errors import Invalid, TooLarge

MAX_DEPTH = 64
"""Levels of arrays and objects. orjson reads 1,024 of them but writes only 254."""

MAX_VALUES = 50_000
"""Values in one body: members, items, and what they hold."""

_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Decoded(NamedTuple):
    """A body and how many values it holds."""

    value: Any
    values: int


def decode(raw: bytes) -> Decoded:
    """Decodes a body. Raises Invalid for what isn't proper JSON, TooLarge for what has too many values."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the body isn't JSON: {error}") from None
    values, members = _measure(value)
    # Outside strings a colon follows every name, so more colons than members means that some name was given twice.
    if raw.count(b":") > members and _STRINGS.sub(b"", raw).count(b":") > members:
        raise Invalid("an object in the body has the same name twice")
    return Decoded(value, values)


def _measure(value: Any) -> tuple[int, int]:
    """How many values and object members there are, level by level, so that no recursion is at the mercy of the sender."""
    values, members = 1, 0
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                members += len(item)
                deeper.extend(item.values())
            elif kind is list:
                deeper.extend(item)
        if not deeper:
            return values, members
        values += len(deeper)
        if values > MAX_VALUES:
            raise TooLarge(f"the body has more than {MAX_VALUES} values")
        level = deeper
    raise Invalid(f"the body is more than {MAX_DEPTH} levels deep")
