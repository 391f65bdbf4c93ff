"""Recovery: binding a log to the Redis server as it is now.

Rules (design page 2; each is needed, the simulation shows what breaks without it): the old generation is closed by a fence in
the store before a new one is named, so a late archiver of the old one can't add to it; the chain names the incarnation that it was
recovered for, and a seed into any other is refused; whoever comes second uses what the first one did.
"""

from __future__ import annotations

import dataclasses

import orjson
import structlog

from app.coord.coord import Answer, Coord, Seed
from app.core.chain import Chain, Generation
from app.core.errors import Corrupt, Unavailable
from app.core.session import State
from app.log import fold, heads
from app.log.headcache import late
from app.log.heads import LogHead
from app.log.segment import encode_fence
from app.log.segments import Segments
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace, put_once

TRIES = 32
WORKSPACE_GAP = 1_000_000
"""How far `seq` of a workspace log jumps in a recovery: numbers that a lost tail may have shown are never used again."""

logger = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """Recovers logs of one store into one Redis. `grace_ms`: how long the holder of a lease may still believe in it."""

    store: Store
    coord: Coord
    segments: Segments
    grace_ms: int
    pace: Pace = REAL

    def recover(self, log: LogName, fenced: int | None = None) -> None:
        """Makes the log warm. `fenced` is a generation that can't go on (a fence, or another history, was met in it).

        Raises Missing, Corrupt, or Unavailable if it can't be settled in a bounded number of tries.
        """
        for _ in range(TRIES):
            inc = self.coord.incarnation()
            head = heads.load(self.store, log, self.pace)
            done = head.last.inc == inc and (fenced is None or head.last.gen > fenced)
            if not done and not self._next_generation(log, head, inc):
                continue
            if self._seed(log, inc):
                return
        raise Unavailable("the session's log can't be recovered now")

    def begin(self, log: LogName, head: LogHead) -> None:
        """Makes a log that was created just now warm: it is known to be empty, so the store isn't asked. Raises Unavailable."""
        raw = orjson.dumps(State().to_json())
        first = head.last
        self.coord.seed(
            log.text,
            Seed(first.gen, first.inc, 0, raw, str(State().status), 0, head.epoch, head.vendor, raw, "", self.grace_ms, {}, {}),
        )

    def _next_generation(self, log: LogName, head: LogHead, inc: str) -> bool:
        """Closes the last generation and names the next; False if another got in between."""
        last = head.last
        at, _, is_fenced = self.segments.head(log, last)
        if not is_fenced:
            put_id = self.pace.token()
            key = keys.segment(log, last.gen, at)
            try:
                put_once(self.store, key, encode_fence(put_id), if_none_match=True, put_id=put_id, pace=self.pace)
            except PreconditionFailed:
                return False
        start = at if log.session else max(at, last.start) + WORKSPACE_GAP
        entry = Generation(last.gen + 1, start, inc, start)

        def grow(now: LogHead) -> dict[str, object] | None:
            # below a boundary that rose meanwhile the fence proves nothing: its key may have been freed
            if now.last.gen != last.gen or now.last.boundary > at:
                return None
            return {"chain": [g.to_json() for g in (*now.chain, entry)]}

        made = heads.change(self.store, log, grow, self.pace)
        won = made.last == entry
        if won:
            logger.info("log recovered", log=log.text, generation=entry.gen, start=start)
        return won

    def _seed(self, log: LogName, inc: str) -> bool:
        asked = self.pace.now()
        head = heads.load(self.store, log, self.pace)
        try:
            state, mark, upto = current(self.segments, log, head.chain)
            found_keys, ids = fold.inputs(self.segments, log, head.chain, upto) if log.session else ({}, {})
        except Corrupt:
            if late(self.pace, asked):
                return False
            raise
        if late(self.pace, asked):
            return False
        raw = orjson.dumps(state.to_json())
        seed = Seed(
            gen=head.last.gen,
            inc=head.last.inc,
            next=upto,
            state=raw,
            status=str(state.status),
            not_before=state.not_before,
            epoch=head.epoch,
            vendor=head.vendor,
            astate=raw,
            asha=mark,
            grace_ms=self.grace_ms,
            keys=found_keys,
            ids=ids,
        )
        return self.coord.seed(log.text, seed) in (Answer.OK, Answer.HAVE)


def current(segments: Segments, log: LogName, chain: Chain) -> tuple[State, str, int]:
    """State, last mark and head of the archive, as they follow from the store alone."""
    last = chain[-1]
    head, segment, _ = segments.head(log, last)
    if log.session is None:
        return State(), segment.mark if segment else "", head
    if head > last.start and segment:
        return State.from_json(segment.state), segment.mark, head
    mark = fold.state_at(segments, log, chain[:-1], last.start)[1] if len(chain) > 1 else ""
    return fold.start_state(segments, log, chain, last.gen), mark, last.start
