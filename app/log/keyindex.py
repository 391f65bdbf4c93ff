"""The key index of a large segment: what recovery needs to know of the inputs in it, without reading the segment.

It is one JSON line with a checksum, compressed: for each input its offset, event id, and if it came with an idempotency key the digests of
key and body. It is a pure function of its large segment, is created once before any reader may rely on it, and can be made anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
import zstandard

from app.core.errors import Corrupt
from app.log import events
from app.log.segment import MAX_PLAIN_BYTES, Segment

VERSION = 1
INPUTS = (b'{"type":"user.', b'{"type":"session.', b'{"type":"input.')
"""How the lines begin that may carry a key, or that an append may be repeated of."""


class Input(NamedTuple):
    """An input in the log. `key` and `body` are digests, both empty for an input without an idempotency key."""

    offset: int
    id: str
    key: str
    body: str


def inputs_of(segment: Segment) -> Iterable[Input]:
    """The inputs of a segment, in order."""
    for offset, raw in enumerate(segment.lines, segment.first):
        if raw.startswith(INPUTS):
            e: dict[str, Any] = events.parse(raw)
            key = e["data"].get("key")
            if key is None:
                yield Input(offset, e["id"], "", "")
            else:
                yield Input(offset, e["id"], events.key_digest(key), events.body_digest(e["type"], e["data"]))


def encode(segment: Segment) -> bytes:
    """The index of `segment`. The same bytes each time."""
    content: dict[str, Any] = {
        "v": VERSION,
        "gen": segment.gen,
        "first": segment.first,
        "end": segment.end,
        "inputs": [list(each) for each in inputs_of(segment)],
    }
    return zstandard.ZstdCompressor(level=3).compress(orjson.dumps({**content, "sha256": _digest(content)}))


def decode(key: str, body: bytes, gen: int, first: int) -> tuple[int, Sequence[Input]]:
    """The end of the large segment at `first` and its inputs. Raises Corrupt, naming the key, for anything else."""
    try:
        if not 0 <= zstandard.frame_content_size(body) <= MAX_PLAIN_BYTES:
            raise Corrupt("a key index of the log is too large", key)
        content = orjson.loads(zstandard.ZstdDecompressor().decompress(body))
        digest = content.pop("sha256")
        if digest != _digest(content) or content["v"] != VERSION:
            raise Corrupt("a key index of the log fails its checksum", key)
        if (content["gen"], content["first"]) != (gen, first):
            raise Corrupt("a key index of the log is another one's content", key)
        return content["end"], [Input(*each) for each in content["inputs"]]
    except (orjson.JSONDecodeError, zstandard.ZstdError, KeyError, TypeError, AttributeError) as e:
        raise Corrupt("a key index of the log can't be read", key) from e


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
