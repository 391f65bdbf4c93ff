"""Events on the wire, and the fold of wire lines.

A line of a log is the contract's Event without its cursor, as compact JSON with `type` first, so that a reader can tell the type,
and put the cursor in, without parsing the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from app.core.cursor import Position, encode

_HEAD = b'{"type":"'


def line(kind: str, event_id: str, time: str, data: Mapping[str, Any], input_id: str | None = None) -> bytes:
    """The wire line of an event. `time` is RFC 3339 in UTC."""
    event: dict[str, Any] = {"type": kind, "id": event_id, "time": time}
    if input_id:
        event["input_id"] = input_id
    return orjson.dumps({**event, "data": data})


def kind_of(raw: bytes) -> str:
    """The type of a wire line."""
    return raw[len(_HEAD) : raw.index(b'"', len(_HEAD))].decode()


def id_of(raw: bytes) -> str:
    """The id of a wire line."""
    at = raw.index(b'"id":"') + 6
    return raw[at : raw.index(b'"', at)].decode()


def parse(raw: bytes) -> dict[str, Any]:
    """A wire line as a dict."""
    event: dict[str, Any] = orjson.loads(raw)
    return event


def shown(session: str, position: Position, raw: bytes) -> dict[str, Any]:
    """The contract's Event at `position`."""
    return {**parse(raw), "cursor": encode(session, position)}


def frame(session: str, position: Position, raw: bytes) -> bytes:
    """The event at `position` as a server-sent event whose id is its cursor."""
    cursor = encode(session, position).encode()
    kind = raw[len(_HEAD) : raw.index(b'"', len(_HEAD))]
    return b"".join((b"id: ", cursor, b"\nevent: ", kind, b"\ndata: ", raw[:-1], b',"cursor":"', cursor, b'"}\n\n'))


def delta_frame(raw: bytes) -> bytes:
    """A delta as a server-sent event: it has no cursor and no id."""
    return b"".join((b"event: ", raw[len(_HEAD) : raw.index(b'"', len(_HEAD))], b"\ndata: ", raw, b"\n\n"))


def key_digest(key: str) -> str:
    """An idempotency key as it is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def body_digest(kind: str, data: Mapping[str, Any]) -> str:
    """What tells one body from another under the same key: type, text, delivery and whatever else an input carries."""
    rest = {name: value for name, value in data.items() if name not in ("key", "turn")}
    return hashlib.sha256(orjson.dumps([kind, rest], option=orjson.OPT_SORT_KEYS)).hexdigest()
