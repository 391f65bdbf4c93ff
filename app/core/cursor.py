"""Cursors: a client's opaque place in a session's log.

A cursor names session, generation and the offset of the last event seen (-1: none). It is 4 bytes of the session's digest,
the generation and offset + 1 as variable-length integers, and a 2-byte checksum that tells a typo from a foreign cursor, in
base64url without padding. It is not a secret and carries no authority.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
from typing import NamedTuple


class Position(NamedTuple):
    """A place in a log: the last event seen is at `offset` of generation `gen`; offset -1 is the start."""

    gen: int
    offset: int


START = Position(0, -1)


class Undecodable(ValueError):
    """Not a cursor at all."""


class Foreign(ValueError):
    """A cursor of another session."""


@functools.lru_cache(maxsize=4096)
def _tag(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()[:4]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(session: str, position: Position) -> str:
    """The cursor for `position` in `session`."""
    body = _tag(session) + _varint(position.gen) + _varint(position.offset + 1)
    check = binascii.crc_hqx(body, 0xFFFF).to_bytes(2, "big")
    return base64.urlsafe_b64encode(body + check).rstrip(b"=").decode()


def decode(session: str, text: str) -> Position:
    """The position that `text` names. Raises Undecodable, or Foreign for another session's cursor."""
    if not 10 <= len(text) <= 64:
        raise Undecodable("a cursor has 10 to 64 characters")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as e:
        raise Undecodable("not base64url") from e
    body, check = raw[:-2], raw[-2:]
    if len(body) < 6 or binascii.crc_hqx(body, 0xFFFF).to_bytes(2, "big") != check:
        raise Undecodable("checksum differs")
    numbers, value, shift = [], 0, 0
    for byte in body[4:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value = shift = 0
    if len(numbers) != 2 or shift:
        raise Undecodable("not two numbers")
    if body[:4] != _tag(session):
        raise Foreign("the cursor is of another session")
    return Position(numbers[0], numbers[1] - 1)
