"""Beginning a generation at an earlier offset: what a restore does to a log.

Rules: the fence is created at exactly the offset that the decision was made on, so an append in between makes it fail; the CAS that
adds the generation also raises the epoch, so whoever held the lease is fenced; what lies beyond the start is no part of the log any more.
"""

from __future__ import annotations

from typing import Any

from app.core.chain import Generation
from app.core.errors import Unavailable
from app.log import heads
from app.log.heads import LogHead
from app.log.log import Log
from app.log.segment import Fence, encode_fence
from app.store import keys
from app.store.contract import PreconditionFailed
from app.store.keys import LogName
from app.store.puts import put_once


def rewind(log: Log, name: LogName, gen: int, at: int, start: int, restored: str, fields: dict[str, Any]) -> bool:
    """Ends generation `gen` at `at`, its decided and archived head, and begins the next at `start`, from checkpoint `restored`.

    `fields` of the head object are changed in the same CAS. False if the log moved on: decide again. Raises Unavailable.
    """
    inc = log.coord.incarnation()
    put_id = log.pace.token()
    key = keys.segment(name, gen, at)
    try:
        put_once(log.store, key, encode_fence(put_id), if_none_match=True, put_id=put_id, pace=log.pace)
    except PreconditionFailed:
        if isinstance(log.segments.load(name, gen, at), Fence):
            log.recovery.recover(name, fenced=gen)
        return False
    entry = Generation(gen + 1, start, inc, start, restored)

    def grow(now: LogHead) -> dict[str, Any] | None:
        # below a boundary that rose meanwhile the fence proves nothing: its key may have been freed
        if now.last.gen != gen or now.last.boundary > at:
            return None
        return {"chain": [g.to_json() for g in (*now.chain, entry)], "epoch": now.epoch + 1, **fields}

    made = log.keep(name, heads.change(log.store, name, grow, log.pace))
    if made.last.boundary > at and made.last.gen == gen:
        return False
    if made.last.gen < entry.gen:
        raise Unavailable("the restore was not settled")
    log.recovery.recover(name, fenced=gen)
    return made.last == entry
