"""Brain sessions: the operations of the contract, each one rule on the log of one session."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from app.coord.coord import Coord
from app.core import cursor, ids
from app.core.cursor import Position
from app.core.errors import Corrupt, CursorUnavailable, Invalid, Missing, Unavailable, Unsupported
from app.core.principal import Principal
from app.core.session import State, Status
from app.log import events, heads
from app.log.follower import Follower
from app.log.heads import LogHead
from app.log.hub import Hub
from app.log.log import Log
from app.services import closing, inputs
from app.services.descriptors import Resolver
from app.services.restoring import Restoring
from app.services.writer import Clock, Writer
from app.store import keys
from app.store.keys import LogName

PARALLEL_READS = 16

logger = structlog.get_logger(__name__)
Document = dict[str, Any]


class Sessions:
    """All of a deployment's sessions. `harnesses` are the offered ones, `steering` those that take messages into a running turn."""

    def __init__(
        self,
        log: Log,
        coord: Coord,
        hub: Hub | None,
        *,
        harnesses: Iterable[str],
        steering: Iterable[str],
        max_queue: int,
        grace_ms: int,
        resolver: Resolver,
        clock: Clock | None = None,
    ) -> None:
        self.log, self.coord, self.hub = log, coord, hub
        self.clock = clock or Clock()
        self.writer = Writer(log, self.clock)
        self._harnesses, self._resolver = tuple(harnesses), resolver
        self._pool = ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="sessions")
        self.inputs = inputs.Inputs(self.writer, self._pool, frozenset(steering), max_queue)
        self._closing = closing.Closing(self.writer, grace_ms)
        self.restoring = Restoring(self.writer, grace_ms)

    def create(self, principal: Principal, body: Document) -> Document:
        """A new idle session. Raises Unsupported for a harness that isn't offered, Invalid or Conflict for tools that can't be."""
        if body["harness"] not in self._harnesses:
            offered = ", ".join(self._harnesses) or "none"
            raise Unsupported(f"harness {body['harness']!r} is not offered here (offered: {offered})")
        session_id = self.clock.id()
        doc = {
            "tenant": principal.tenant,
            "harness": body["harness"],
            "config": body["config"],
            "created_at": self.clock.text(),
            "created_by": principal.login or "",
            **self._resolver.resolve(principal, session_id, body),
        }
        name = LogName(principal.tenant, session_id)
        head = heads.create(self.log.store, name, self.coord.incarnation(), {"id": session_id, **doc}, self.log.pace)
        try:
            self.log.recovery.begin(name, head)
        except Unavailable:
            logger.info("a new session is cold: Redis can't be reached", session=session_id)
        return _shown(self.log.keep(name, head), State())

    def get(self, principal: Principal, id: str) -> Document:
        """The session as it is now: its status is no older than any event that was shown."""
        name = self._name(principal, id)
        state = self.log.state(name)
        return _shown(self.log.head(name), state)

    def list(self, principal: Principal, after: str | None, limit: int) -> Document:
        """A page of the tenant's sessions in ascending id order."""
        if after and ids.normal(after) is None:
            raise Invalid("after: must be the id of a session, 32 hex characters", "after")
        prefix = keys.sessions_prefix(principal.tenant)
        found = self.log.store.list_dirs(prefix, start_after=(after or "").lower(), limit=limit)
        shown = self._pool.map(lambda each: self._listed(principal, each), found)
        return {"sessions": [s for s in shown if s]}

    def close(self, principal: Principal, id: str) -> Document:
        """Ends the session for good; a turn that runs is cut off and fenced."""
        return {"status": self._closing.close(self._name(principal, id))}

    def send(self, principal: Principal, id: str, body: Document) -> Document:
        """Takes a message or an interrupt. What is answered is in the object store."""
        name = self._name(principal, id)
        head = self.log.head(name)
        return self.inputs.send(name, head.vendor, body, principal.login)

    def withdraw(self, principal: Principal, id: str, event_id: str) -> Document:
        """Takes back a message that no turn has consumed."""
        name = self._name(principal, id)
        self.log.head(name)
        normal = ids.normal(event_id)
        if normal is None:
            raise Missing("no such input")
        return {"status": self.inputs.withdraw(name, normal)}

    def events(self, principal: Principal, id: str, after: str | None, limit: int) -> Document:
        """A page of events after a cursor; `next_cursor` is always where to go on from."""
        name = self._name(principal, id)
        position = self._position(name, after)
        page = self.log.read(name, position, limit)
        shown = [events.shown(id, e.position, e.raw) for e in page.entries]
        last = page.entries[-1].position if page.entries else position
        return {"events": shown, "next_cursor": cursor.encode(id, last)}

    def stream(self, principal: Principal, id: str, after: str | None) -> Follower:
        """A follower that has checked its cursor: from history into the live tail, to the end of a closed session."""
        assert self.hub
        name = self._name(principal, id)
        position = self._position(name, after)
        self.log.read(name, position, 1)
        follower = self.hub.follow(name, position)
        follower.finite = self.log.state(name).status is Status.CLOSED
        return follower

    def sync(self, principal: Principal, id: str) -> Document:
        """How far the session is in the store."""
        return self.restoring.sync(self._name(principal, id))

    def flush(self, principal: Principal, id: str) -> Document:
        """Archives everything and publishes the last completed checkpoint, then answers as `sync`."""
        return self.restoring.flush(self._name(principal, id))

    def resume(self, principal: Principal, id: str) -> Document:
        """Puts an interrupted or failed session back to its last completed checkpoint."""
        self.restoring.resume(self._name(principal, id))
        return self.get(principal, id)

    def restore(self, principal: Principal, id: str, checkpoint: str) -> Document:
        """Makes an earlier checkpoint the present."""
        self.restoring.restore(self._name(principal, id), checkpoint)
        return self.get(principal, id)

    def _listed(self, principal: Principal, id: str) -> Document | None:
        try:
            return self.get(principal, id)
        except Missing:
            return None
        except Corrupt as e:
            logger.error("session left out of a list", session=id, object=e.key)
            return None

    def _name(self, principal: Principal, id: str) -> LogName:
        if principal.session not in (None, id):
            raise Missing("no such session")
        return LogName(principal.tenant, id)

    def _position(self, name: LogName, after: str | None) -> Position:
        if not after:
            return cursor.START
        session = name.session or ""
        try:
            return cursor.decode(session, after)
        except cursor.Undecodable as e:
            self.log.head(name)
            raise Invalid(f"after: not a cursor of this API ({e})", "after") from None
        except cursor.Foreign:
            self.log.head(name)
            raise CursorUnavailable("the cursor is of another session", cursor.encode(session, cursor.START)) from None


def _shown(head: LogHead, state: State) -> Document:
    doc = head.doc
    shown: Document = {
        "id": doc["id"],
        "harness": doc["harness"],
        "config": doc["config"],
        "status": str(state.status),
        "created_at": doc["created_at"],
        "updated_at": state.updated_at or doc["created_at"],
        "descriptors": doc["descriptors"],
    }
    if doc.get("credential_bindings"):
        shown["credential_bindings"] = doc["credential_bindings"]
    if state.checkpoint:
        shown["checkpoint"] = {"id": state.checkpoint.id, "offset": state.checkpoint.offset, "time": state.checkpoint.time}
    return shown
