"""Ending what is open: a session that is closed, a turn whose worker was lost.

Rules: first whoever ran the turn is fenced (the epoch rises in `session.json`, then the lease is revoked), so nothing can be
added; then its open calls, which are now exactly known, get unknown outcomes, and the turn is settled, in one batch.
"""

from __future__ import annotations

from typing import Any

from app.core.cursor import Position
from app.core.errors import Unavailable
from app.core.session import Queued, Status
from app.log import events, heads
from app.log.heads import LogHead
from app.log.log import Log, View
from app.services.inputs import drop_pending
from app.services.writer import Draft, Writer
from app.store.keys import LogName

PAGE = 1000
TRIES = 8
UNKNOWN = {
    "content": [{"type": "text", "text": "The outcome of this call is unknown: it was cut off."}],
    "is_error": True,
    "unknown_outcome": True,
}


class Closing:
    """`grace_ms` is how long after a revocation the sweep settles a session whose closing did not get through."""

    def __init__(self, writer: Writer, grace_ms: int) -> None:
        self._writer, self._grace_ms = writer, grace_ms

    def close(self, name: LogName) -> str:
        """Closes the session, whatever runs or waits; from the answer on it is closed. Idempotent."""
        for _ in range(TRIES):
            turn = self._writer.log.view(name).state.turn
            if turn:
                raise_epoch(self._writer.log, name)
                self._writer.log.coord.revoke(name.text, self._grace_ms)
            try:
                self._end(name, turn.id if turn else None)
            except _OtherTurn:
                continue
            return "closed"
        raise Unavailable("the session's turns change too fast to close it")

    def _end(self, name: LogName, fenced: str | None) -> None:
        left: list[Queued] = []

        def decide(view: View) -> list[Draft]:
            state = view.state
            if state.status is Status.CLOSED:
                return []
            if state.turn and state.turn.id != fenced:
                raise _OtherTurn
            left[:] = [*state.queue, *(state.turn.inputs if state.turn else ())]
            return [*cut_off(self._writer, name, view, "closed"), self._writer.draft("session.closed", {})]

        self._writer.commit(name, decide)
        for q in left:
            drop_pending(self._writer, name, q.gen, q.offset)


class _OtherTurn(Exception):
    """Another turn than the fenced one is open."""


def cut_off(writer: Writer, name: LogName, view: View, reason: str, message: str = "") -> list[Draft]:
    """The events that settle an open turn of a fenced worker; none if no turn is open."""
    turn = view.state.turn
    if turn is None or view.state.status is Status.CLOSED:
        return []
    assert isinstance(turn.since, int)
    results = [
        writer.draft("tool.result", {"turn": turn.id, "call_id": call, "result": UNKNOWN})
        for call in open_calls(writer.log, name, Position(turn.gen, turn.since), turn.id)
    ]
    data = {"turn": turn.id, "reason": reason, **({"message": message} if message else {})}
    return [*results, writer.draft("turn.interrupted", data)]


def open_calls(log: Log, name: LogName, since: Position, turn: str) -> list[str]:
    """Ids of the calls of `turn` without a result, in the order of their calls. `since` is where the turn started."""
    calls: dict[str, None] = {}
    while True:
        page = log.read(name, since, PAGE)
        for entry in page.entries:
            if entry.raw.startswith((b'{"type":"tool.call"', b'{"type":"tool.result"')):
                e = events.parse(entry.raw)
                if e["data"].get("turn") != turn:
                    continue
                if e["type"] == "tool.call":
                    calls[e["data"]["id"]] = None
                else:
                    calls.pop(e["data"]["call_id"], None)
        if page.entries:
            since = page.entries[-1].position
        if page.end or not page.entries:
            return list(calls)


def raise_epoch(log: Log, name: LogName, extra: dict[str, Any] | None = None) -> LogHead:
    """Raises the fencing number in `session.json`; `extra` fields are changed with it. Gives the head that resulted."""

    def more(head: LogHead) -> dict[str, Any]:
        return {"epoch": head.epoch + 1, **(extra or {})}

    return log.keep(name, heads.change(log.store, name, more, log.pace))
