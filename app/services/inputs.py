"""Taking a client's input into a session's log.

Rules: an input is acknowledged when it is in a segment and its `pending/` object is there, so that it runs even if Redis forgets
everything and no client asks again. For that the log must be warm once the object is there: a sweep that has looked for pending
objects before, in an incarnation of Redis that has lost the log, doesn't look again. The same key and body is the same event; the
key is judged before the status.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import orjson

from app.coord.coord import Key
from app.core import input as rules
from app.core.cursor import Position
from app.core.errors import Conflict, Invalid, Missing, Overloaded, Unavailable, Unsupported
from app.core.input import Accepted, Nothing, Refused
from app.core.session import State
from app.log import events
from app.log.archiver import Place
from app.log.log import View
from app.services.writer import Committed, Draft, Writer
from app.store import keys
from app.store.contract import StoreError
from app.store.keys import LogName

MAX_KEY = 512


class Inputs:
    """`steering` names the harnesses that take a message into a running turn; `max_queue` bounds what waits in one session."""

    def __init__(self, writer: Writer, pool: ThreadPoolExecutor, steering: frozenset[str], max_queue: int) -> None:
        self._writer, self._pool, self._steering, self._max_queue = writer, pool, steering, max_queue

    def send(self, name: LogName, harness: str, body: dict[str, Any], login: str | None) -> dict[str, Any]:
        """The contract's Event of a message, or the Status of an interrupt. Raises Invalid, Unsupported, Conflict, Overloaded."""
        kind = body["type"]
        if kind == "user.interrupt":
            return {"status": self._interrupt(name, body.get("key"))}
        if kind != "user.message":
            raise Invalid(f"type: {kind[:80]!r} is not an input; send user.message or user.interrupt", "type")
        if "text" not in body:
            raise Invalid("text: a user.message needs it", "text")
        delivery = body.get("delivery", "queue")
        if delivery not in rules.DELIVERIES:
            raise Unsupported(f"delivery {delivery[:80]!r} is not known: queue, interrupt or steer")
        if delivery == "steer" and harness not in self._steering:
            raise Unsupported(f"harness {harness!r} can't take a message into a running turn: use queue or interrupt")
        data = {"text": body["text"]}
        if delivery != "queue":
            data["delivery"] = delivery
        return self.message(name, data, body.get("key"))

    def message(self, name: LogName, data: dict[str, Any], key: str | None, *, alone: bool = False) -> dict[str, Any]:
        """Appends a `user.message` with `data` and answers its Event. `alone`: only to an idle session, else Conflict."""
        if key is not None:
            if not 0 < len(key) <= MAX_KEY:
                raise Invalid(f"key: must have 1 to {MAX_KEY} characters", "key")
            data = {**data, "key": key}
        draft = self._writer.draft("user.message", data)
        digest = events.body_digest("user.message", data)
        given = Key(events.key_digest(key), digest) if key is not None else None
        waits: list[Future[None]] = []

        def decide(view: View) -> list[Draft]:
            self._accepted(rules.message(view.state, data, self._max_queue, alone=alone))
            return [draft]

        def durable(place: Place) -> None:
            if place.id == draft.id:
                waits.append(self._pool.submit(self._put_pending, name, place))

        done = self._writer.commit(name, decide, key=given, durable=durable)
        assert done
        for wait in waits:
            wait.result()
        if done.repeated:
            return self._repeated(name, done, digest)
        return events.shown(name.session or "", Position(done.place.gen, done.place.offset), draft.line())

    def withdraw(self, name: LogName, event_id: str) -> str:
        """Takes a waiting input out of the queue; answers the status. Raises Conflict if it doesn't wait."""

        def decide(view: View) -> list[Draft]:
            accepted = self._accepted(rules.withdraw(view.state, event_id))
            queued.extend(q for q in view.state.queue if q.id == event_id)
            return [self._writer.draft(accepted.kind, accepted.data, event_id)]

        queued: list[Any] = []
        self._writer.commit(name, decide)
        for q in queued[-1:]:
            drop_pending(self._writer, name, q.gen, q.offset)
        return "accepted"

    def _interrupt(self, name: LogName, key: str | None) -> str:
        answer = ["interrupting"]

        def decide(view: View) -> list[Draft]:
            decision = rules.interrupt(view.state)
            if isinstance(decision, Nothing):
                answer[0] = decision.status
                return []
            return [self._writer.draft(decision.kind, {**decision.data, **({"key": key} if key else {})})]

        given = Key(events.key_digest(key), events.body_digest("user.interrupt", {})) if key else None
        done = self._writer.commit(name, decide, key=given)
        if done and done.repeated and done.body != given.body:  # type: ignore[union-attr]
            raise Conflict("this key came with another input before")
        return "interrupting" if done else answer[0]

    def _accepted(self, decision: Accepted | Refused) -> Accepted:
        if isinstance(decision, Refused):
            raise Overloaded(decision.why) if decision.full else Conflict(decision.why)
        return decision

    def _repeated(self, name: LogName, done: Committed, digest: str) -> dict[str, Any]:
        if done.body != digest:
            raise Conflict("this key came with another body before")
        position = Position(done.place.gen, done.place.offset)
        try:
            raw = self._writer.log.at(name, position)
        except Missing:
            raise Unavailable("a restore has just dropped the input; send it again with the same key") from None
        if self._needed(name, done.place):
            self._put_pending(name, done.place)
        return events.shown(name.session or "", position, raw)

    def _needed(self, name: LogName, place: Place) -> bool:
        """Whether no segment says yet that a settled turn has consumed it: what only Redis says may be lost with it."""
        tail = self._writer.log.coord.tail(name.text, -1, 0)
        if tail is None:
            return waiting(self._writer.log.state(name), place.id)
        return place.offset >= tail.arch or waiting(State.from_json(orjson.loads(tail.astate)), place.id)

    def _put_pending(self, name: LogName, place: Place) -> None:
        assert name.session
        key = keys.pending(name.tenant, name.session, place.gen, place.offset)
        try:
            self._writer.log.store.put(key, orjson.dumps({"id": place.id}))
        except StoreError as e:
            raise Unavailable("the object store did not take the input; send it again with the same key") from e
        self._warm(name)

    def _warm(self, name: LogName) -> None:
        """Sees to it that Redis knows the log. From here on a loss of it is one that the sweep looks for pending objects after."""
        self._writer.log.view(name)


def waiting(state: State, event_id: str) -> bool:
    """Whether an input is accepted and not yet consumed by a settled turn."""
    return any(q.id == event_id for q in (*state.queue, *(state.turn.inputs if state.turn else ())))


def drop_pending(writer: Writer, name: LogName, gen: int, offset: int | str) -> None:
    """Removes a pending object whose input needs no one any more. A failure leaves it to the sweep."""
    assert name.session and isinstance(offset, int)
    try:
        writer.log.store.delete(keys.pending(name.tenant, name.session, gen, offset))
    except StoreError:
        return
