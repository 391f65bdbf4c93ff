"""The workspace log of a tenant: everything that byre shows, in one order, under one number each (`seq`).

Rules: `seq` is the offset plus one, so that "after 0" is everything. It only rises; a recovery makes it jump, and a number that a
lost tail has shown is never used again. What is published here happened already: an entity's change, or an event of a session's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from app.coord.coord import Answer
from app.core.errors import Missing, Unavailable
from app.log import events, heads
from app.log.archiver import Place
from app.log.log import Entry, Log
from app.store.contract import PreconditionFailed
from app.store.keys import LogName

TRIES = 16
PAGE = 1000
Document = dict[str, Any]


class Happening(NamedTuple):
    """Something that happened: `data` has project_id, task_id, agent_session_id (where they apply), actor and payload."""

    kind: str
    time: str
    data: Document


class WorkspaceLog:
    """The workspace logs of all tenants."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def publish(self, tenant: str, waiting: Sequence[Document]) -> list[int]:
        """Appends outbox events and waits until they are in a segment; gives their `seq`s. Raises Unavailable.

        What was published before (as far back as the log remembers ids) is left out.
        """
        name = LogName(tenant, None)
        for event in waiting:
            if event["kind"] == "inbox.created":
                # before it is appended: a hint that leads to nothing does no harm, a lost one delays a message to people
                self.log.coord.ring(tenant, event["data"]["payload"]["item_id"])
        places: list[Place] = []
        for event in waiting:
            raw = events.line(event["kind"], event["id"], event["time"], event["data"])
            places.append(self._append(name, event["id"], raw))
        for _ in range(TRIES):
            if all(self.log.archive(name, place) for place in places[-1:]):
                return [place.offset + 1 for place in places]
            places = [self._append(name, e["id"], events.line(e["kind"], e["id"], e["time"], e["data"])) for e in waiting]
        raise Unavailable("the workspace log can't be written now")

    def append(self, tenant: str, batch: Sequence[tuple[str, bytes]]) -> int:
        """Appends lines without waiting for the archive; gives the `seq` of the first. Raises Unavailable."""
        name = LogName(tenant, None)
        for _ in range(TRIES):
            done = self.log.append(name, batch)
            if done.answer in (Answer.OK, Answer.DUP):
                return done.offset + 1
            self._make(name)
        raise Unavailable("the workspace log can't be written now")

    def ensure(self, tenant: str) -> None:
        """Makes the tenant's log if there is none yet. Raises Unavailable."""
        name = LogName(tenant, None)
        try:
            self.log.head(name)
        except Missing:
            self._make(name)

    def last(self, tenant: str) -> int:
        """The latest `seq`, 0 if nothing has happened."""
        name = LogName(tenant, None)
        try:
            return self.log.next(name)
        except Missing:
            return 0

    def page(self, tenant: str, after: int, limit: int) -> list[Entry]:
        """Up to `limit` entries after `seq`; one within a gap is answered with what follows it."""
        name = LogName(tenant, None)
        after = max(after, 0)
        if after and after >= self.last(tenant):
            return []
        try:
            start = self.log.position(name, after - 1)
            return self.log.read(name, start, limit).entries
        except Missing:
            return []

    def _append(self, name: LogName, event_id: str, raw: bytes) -> Place:
        for _ in range(TRIES):
            done = self.log.append(name, [(event_id, raw)])
            if done.answer in (Answer.OK, Answer.DUP):
                return Place(done.gen, done.offset, event_id)
            self._make(name)
        raise Unavailable("the workspace log can't be written now")

    def _make(self, name: LogName) -> None:
        """Warms the log; creates it if it is the tenant's first event."""
        try:
            self.log.recovery.recover(name)
        except Missing:
            try:
                heads.create(self.log.store, name, self.log.coord.incarnation(), {}, self.log.pace)
            except PreconditionFailed:
                return


def shown(entry: Entry) -> Document:
    """The contract's Event of byre."""
    e = events.parse(entry.raw)
    data = e["data"]
    out: Document = {"seq": entry.position.offset + 1, "kind": e["type"], "actor": data["actor"], "payload": data["payload"]}
    out |= {name: data[name] for name in ("project_id", "task_id", "agent_session_id") if data.get(name)}
    return {**out, "created_at": e["time"]}
