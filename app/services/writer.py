"""Writing state changes: look at the folded state, decide, append if nothing changed meanwhile, make it durable.

Rules: a decision is made again on each newer state, a bounded number of times; what is acknowledged was seen in a segment. A writer
that holds a lease stops (Fenced) where anyone else recovers the log and goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from app.coord.coord import Answer, Holder, Key, StateChange
from app.core import chain as chains
from app.core import ids
from app.core.errors import Fenced, Unavailable
from app.core.session import State, step
from app.log import events
from app.log.archiver import Place
from app.log.log import Log, View, now_text
from app.store.keys import LogName

TRIES = 24
NEVER = "never"
"""A version that no log has: an append that carries it only finds out whether the key is known."""


class Draft(NamedTuple):
    """An event that isn't appended yet."""

    kind: str
    id: str
    time: str
    data: dict[str, Any]
    input_id: str | None = None

    def line(self) -> bytes:
        """Its wire line."""
        return events.line(self.kind, self.id, self.time, self.data, self.input_id)


class Committed(NamedTuple):
    """What became of it: the place of the first event, and (unless it was known before) the state after the last."""

    place: Place
    state: State
    repeated: bool = False
    body: str = ""


class Clock:
    """Wall clock and ids. A simulation has its own."""

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def id(self) -> str:
        """A new id."""
        return ids.make(int(self.now() * 1000), os.urandom(10))

    def text(self) -> str:
        """Now, as RFC 3339."""
        return now_text(self.now())


Decide = Callable[[View], Sequence[Draft]]


class Writer:
    """Commits decisions to the log of a session."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log, self.clock = log, clock

    def draft(self, kind: str, data: dict[str, Any], input_id: str | None = None) -> Draft:
        """A new event of now."""
        return Draft(kind, self.clock.id(), self.clock.text(), data, input_id)

    def commit(
        self,
        name: LogName,
        decide: Decide,
        *,
        holder: Holder | None = None,
        key: Key | None = None,
        durable: Callable[[Place], None] | None = None,
    ) -> Committed | None:
        """Appends what `decide` makes of the present state, as one batch, and waits until it is in a segment.

        `decide` gives no drafts for "nothing to do" (then None is returned) or raises its refusal; a known `key` is found before
        either. `durable(place)` runs before this returns. Raises Fenced for a holder that lost its lease, Unavailable if nothing was
        settled in bounded tries: then the events may be in the log.
        """
        for _ in range(TRIES):
            view = self.log.view(name) if holder is None else self._held_view(name, holder)
            try:
                drafts = decide(view)
            except Exception:
                known = self._known(name, key)
                if known is None:
                    raise
                drafts = ()
            else:
                known = None if drafts else self._known(name, key)
            if known is None:
                if not drafts:
                    # that there is nothing to do is an answer, too: what it rests on must be in a segment
                    if self.log.archive(name, gen=view.gen):
                        return None
                    if holder:
                        raise Fenced("the log was recovered")
                    continue
                known = self._append(name, view, drafts, holder, key)
            if known is None:
                continue
            if durable:
                durable(known.place)
            if self.log.archive(name, known.place):
                return known
            if holder:
                raise Fenced("the log was recovered")
        raise Unavailable("the session changes too fast; nothing was decided")

    def apply(self, view: View, drafts: Sequence[Draft]) -> State:
        """The state after `drafts`, with placeholders for their offsets. Raises IllegalStep."""
        state = view.state
        for i, d in enumerate(drafts):
            state = step(state, d.kind, d.id, d.time, d.data, view.gen, f"@{i}")
        return state

    def _append(
        self, name: LogName, view: View, drafts: Sequence[Draft], holder: Holder | None, key: Key | None
    ) -> Committed | None:
        state = self.apply(view, drafts)
        change = StateChange(view.version, orjson.dumps(state.to_json()), str(state.status), state.not_before)
        done = self.log.append(name, [(d.id, d.line()) for d in drafts], holder=holder, key=key, change=change)
        match done.answer:
            case Answer.OK:
                return Committed(Place(done.gen, done.offset, drafts[0].id), state)
            case Answer.DUP:
                return Committed(self._owned(name, done.offset, done.id), state, done.id != drafts[0].id, done.body)
            case Answer.STALE:
                return None
            case Answer.COLD if holder is None:
                self.log.recovery.recover(name)
                return None
            case _:
                raise Fenced("the lease is lost")

    def _known(self, name: LogName, key: Key | None) -> Committed | None:
        if key is None:
            return None
        change = StateChange(NEVER, b"", "")
        done = self.log.append(name, [(self.clock.id(), b"")], key=key, change=change)
        if done.answer is not Answer.DUP:
            return None
        return Committed(self._owned(name, done.offset, done.id), State(), True, done.body)

    def _owned(self, name: LogName, offset: int, event_id: str) -> Place:
        chain = self.log.head(name).chain
        return Place(chains.owner(chain, offset).gen, offset, event_id)

    def _held_view(self, name: LogName, holder: Holder) -> View:
        look = self.log.coord.look(name.text)
        if look is None or look.worker != holder.worker or look.epoch != str(holder.epoch):
            raise Fenced("the lease is lost")
        return View(State.from_json(orjson.loads(look.state)), look.version, look.gen, look.next, look.arch)
