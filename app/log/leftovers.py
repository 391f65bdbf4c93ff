"""What a log has left behind in the store, and nobody can want any more.

Rules: a key may be freed a day after the chain has said that nobody may want it: a writer that relies on a chain older than ten minutes
reads it again first (`log.py`), so none that is still at it can take a freed key for a free one. Small segments go once a boundary
above them is a day old; what a restore has cut off goes once something was appended after the cut a day ago. Fences stay for
good, and so does what can't be read: `byre check` names it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from app.core import chain as chains
from app.core.chain import Chain
from app.core.errors import Corrupt
from app.log import events
from app.log.segment import Segment, decode
from app.log.segments import Segments
from app.store import keys
from app.store.keys import LogName

DAY = 86_400


class Leftover(NamedTuple):
    """An object that can go, and its body. `merged`: its events are in a large segment, else they were left behind by a restore."""

    key: str
    body: bytes
    merged: bool


Under = Callable[[str, str], Iterable[str]]
"""All keys that begin with the first argument and follow the second."""


def leftovers(segments: Segments, under: Under, name: LogName, chain: Chain, now: float) -> Iterator[Leftover]:
    """Everything in `name`'s log that can go at unix time `now`. Raises Unavailable, Corrupt."""
    since = int(now) - DAY
    for gen in chain:
        prefix, boundary = keys.segment_prefix(name, gen.gen), gen.settled_boundary(since)
        for key in under(prefix, prefix) if boundary > gen.start else ():
            if keys.parse_segment(key).offset >= boundary:
                break
            body = _segment(segments, key)
            if body:
                yield Leftover(key, body, True)
        limit = chains.end(chain, gen.gen)
        if limit is not None and _cut_before(segments, name, chain, limit, since):
            yield from _cut_off(segments, under, name, gen.gen, max(limit, boundary))


def _cut_off(segments: Segments, under: Under, name: LogName, gen: int, limit: int) -> Iterator[Leftover]:
    for build, prefix in (
        (keys.segment, keys.segment_prefix(name, gen)),
        (keys.compacted, keys.compacted_prefix(name, gen)),
        (keys.key_index, keys.key_index_prefix(name, gen)),
    ):
        for key in under(prefix, build(name, gen, limit - 1) if limit else prefix):
            body = segments.fetch(key) if build is keys.key_index else _segment(segments, key)
            if body:
                yield Leftover(key, body, False)


def _cut_before(segments: Segments, name: LogName, chain: Chain, limit: int, since: int) -> bool:
    """Whether the generation that holds `limit` now was in the chain at unix time `since`: its first event is as old as that."""
    owner = chains.owner(chain, limit)
    found = segments.find(name, owner, limit)
    if found is None:
        return False
    time = events.parse(found.lines[limit - found.first])["time"]
    return datetime.datetime.fromisoformat(time).timestamp() <= since


def _segment(segments: Segments, key: str) -> bytes | None:
    """The body of a segment; None for a fence, and for what can't be read."""
    body = segments.fetch(key)
    try:
        return body if body and isinstance(decode(key, body), Segment) else None
    except Corrupt:
        return None
