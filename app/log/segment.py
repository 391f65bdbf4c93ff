"""The bytes of a segment and of a fence.

A segment is one line of JSON, the header `{v, gen, first, count, put_id, prev, total, state, sha256}`, and after the newline a zstd frame
of the events, one wire line each. `prev` is the checksum of the segment before it, `state` the folded state after the last event,
and `sha256` covers the header without itself and the frame, so that a flipped bit anywhere is found. A large segment, made of small
ones, has the checksum of the last of them as `last`, and that is what the next one's `prev` says. A fence is the JSON line
`{"fence": put_id}` alone: nothing can be archived at or after it in its generation.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import orjson
import zstandard

from app.core.errors import Corrupt

VERSION = 1
MAX_PLAIN_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Events `first .. first + len(lines) - 1` of generation `gen`, as their wire bytes, and the state after them."""

    gen: int
    first: int
    lines: list[bytes]
    prev: str
    state: dict[str, Any]
    put_id: str
    total: int = 0
    """Bytes of all lines of the log up to and with this segment."""
    sha256: str = ""
    last: str = ""
    """In a large segment: the checksum of the last small one in it."""

    @property
    def mark(self) -> str:
        """What the next segment needs to know of this one: `checksum:total`."""
        return f"{self.last or self.sha256}:{self.total}"

    @property
    def end(self) -> int:
        """The offset after the last event."""
        return self.first + len(self.lines)


@dataclasses.dataclass(frozen=True, slots=True)
class Fence:
    """The end of a generation."""

    put_id: str


def encode(segment: Segment) -> tuple[bytes, str]:
    """The object's body and its checksum."""
    frame = zstandard.ZstdCompressor(level=3).compress(b"\n".join(segment.lines))
    header: dict[str, Any] = {
        "v": VERSION,
        "gen": segment.gen,
        "first": segment.first,
        "count": len(segment.lines),
        "put_id": segment.put_id,
        "prev": segment.prev,
        "total": segment.total,
        "state": segment.state,
        **({"last": segment.last} if segment.last else {}),
    }
    digest = _digest(header, frame)
    return orjson.dumps({**header, "sha256": digest}) + b"\n" + frame, digest


def encode_fence(put_id: str) -> bytes:
    """The body of a fence."""
    return orjson.dumps({"fence": put_id})


def is_fence(body: bytes) -> bool:
    """Whether this is the body of a fence."""
    return body.startswith(b'{"fence":')


def decode(key: str, body: bytes) -> Segment | Fence:
    """What was read at `key`. Raises Corrupt, naming the key, unless every byte is as it was written."""
    line, _, frame = body.partition(b"\n")
    try:
        header = orjson.loads(line)
        if "fence" in header:
            return Fence(header["fence"])
        digest = header.pop("sha256")
        if digest != _digest(header, frame) or header["v"] != VERSION:
            raise Corrupt("a segment of the log fails its checksum", key)
        if not 0 <= zstandard.frame_content_size(frame) <= MAX_PLAIN_BYTES:  # `max_output_size` gives way to what a frame says
            raise Corrupt("a segment of the log is too large", key)
        plain = zstandard.ZstdDecompressor().decompress(frame)
        lines = plain.split(b"\n")
        if len(lines) != header["count"]:
            raise Corrupt("a segment of the log fails its checksum", key)
        h = header
        return Segment(h["gen"], h["first"], lines, h["prev"], h["state"], h["put_id"], h["total"], digest, h.get("last", ""))
    except (orjson.JSONDecodeError, zstandard.ZstdError, KeyError, TypeError, AttributeError) as e:
        raise Corrupt("a segment of the log can't be read", key) from e


def unmark(mark: str) -> tuple[str, int]:
    """Checksum and total of a `Segment.mark`; empty for a log without segments."""
    sha, _, total = mark.partition(":")
    return sha, int(total or 0)


def _digest(header: dict[str, Any], frame: bytes) -> str:
    return hashlib.sha256(orjson.dumps(header, option=orjson.OPT_SORT_KEYS) + frame).hexdigest()
