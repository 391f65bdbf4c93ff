"""The end of a session's turn, as byre has to take care of it: what the turn was for, how it ended, what it said last.

Rules: everything is read from the session's log, so that whoever comes next after a crash does the same; an inbox item that tells of a turn
has the turn's id, so there is one. The session's record says of which turn all this is done, and only then the session is idle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from app.core.cursor import Position
from app.core.errors import Conflict, Unavailable
from app.core.session import SETTLING, Ended, Status
from app.log import events
from app.log.log import Log
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.tasks import happening
from app.services.turns import Said, Turns
from app.services.writer import Clock
from app.store import keys
from app.store.keys import LogName

PAGE = 500
LOST = ("worker_lost", "drained")
"""Reasons for which a turn ended that say nothing of the turn itself."""
REASONS = {
    "worker_lost": "the worker that ran the turn was lost",
    "drained": "the worker was stopped while the turn ran",
    "limit": "the turn reached a limit",
    "harness": "the agent ended the turn",
    "closed": "the session was closed",
}
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class End(NamedTuple):
    """How a turn ended: `kind` is the type of its last event, `data` that event's, `text` the agent's last message."""

    turn: str
    purpose: str
    inputs: list[str]
    kind: str
    data: Document
    text: str
    place: Position

    @property
    def lost(self) -> bool:
        """Whether it was cut off by the loss or the end of its worker."""
        return self.kind == "turn.interrupted" and self.data["reason"] in LOST

    @property
    def by_user(self) -> bool:
        """Whether somebody interrupted it."""
        return self.kind == "turn.interrupted" and self.data["reason"] == "user"

    @property
    def error(self) -> str:
        """What went wrong, for a person."""
        if self.kind == "turn.failed":
            return f"{self.data['message']} ({self.data['code']})"
        reason = self.data.get("reason", "")
        said = self.data.get("message", "")
        return f"{REASONS.get(reason, reason)}{f': {said}' if said else ''}; send a message to go on"


class Endings:
    """Takes care of turns that have ended. `mirror` has the rest of a session's events shown in the workspace log."""

    def __init__(
        self,
        entities: Entities,
        inbox: Inbox,
        turns: Turns,
        clock: Clock,
        head: Callable[[str, Document], str],
        mirror: Callable[[LogName, Document, Position], None],
    ) -> None:
        self._entities, self._inbox, self._turns, self._clock = entities, inbox, turns, clock
        self._head, self._mirror = head, mirror

    def settle(self, tenant: str, task: Document, record: Document, ended: Ended) -> None:
        """Does all that the end of a turn asks for, but for what a merge makes of it. Raises Unavailable, ByreError."""
        name = LogName(tenant, record["id"])
        end = read(self._turns.log, name, ended)
        self._mirror(name, {"task_id": task["id"], "project_id": task["project_id"]}, end.place)
        merging = self._merge_goes_on(tenant, task, record, end)
        if end.kind == "turn.completed":
            if end.purpose == "handoff" and record.get("handoff"):
                self._hand_over(tenant, task, record, end)
                return
            if end.purpose != "handoff":
                self._report(tenant, record, end)
        elif not end.by_user and not (end.lost and merging):
            self._withdraw(tenant, record, end)
            self._inbox.create(tenant, record, "session_error", {"error": end.error}, end.turn)
        self._resume(name)
        self._settled(tenant, task, record, end, idle=not merging)

    def _report(self, tenant: str, record: Document, end: End) -> None:
        self._inbox.create(tenant, record, "report", {"text": end.text}, end.turn)
        older = self._inbox.open_of_task(
            tenant,
            record["task_id"],
            lambda item: item["kind"] == "report" and item["agent_session_id"] == record["id"] and item["id"] != end.turn,
        )
        self._inbox.supersede(tenant, older, "report")

    def _withdraw(self, tenant: str, record: Document, end: End) -> None:
        """An item that said that this turn was parked was made just before its worker was lost: it wasn't parked."""
        wrong = limit_id(end.turn)
        self._inbox.supersede(
            tenant, self._inbox.open_of_task(tenant, record["task_id"], lambda item: item["id"] == wrong), "session_error"
        )

    def _resume(self, name: LogName) -> None:
        if self._turns.log.state(name).status in (Status.INTERRUPTED, Status.FAILED):
            try:
                self._turns.restoring.resume(name)
            except Conflict:
                logger.info("a session was resumed by another", session=name.session)

    def _merge_goes_on(self, tenant: str, task: Document, record: Document, end: End) -> bool:
        """Notes what the end of a merge-in turn means for the merge that it is part of; whether there is one, also before."""
        merge = task.get("merge")
        if not merge or merge["session"] != record["id"] or end.purpose != "merge_in":
            return False

        def note(doc: Document) -> tuple[Document, tuple[()]] | None:
            now = doc.get("merge")
            if not now or now["id"] != merge["id"] or now["stage"] != "turn" or now["attempt"] != merge["attempt"]:
                return None
            if end.kind == "turn.completed":
                new = {**now, "stage": "landing"}
            elif end.lost:
                new = {**now, "stage": "waiting"}
            else:
                why = "it was interrupted" if end.by_user else f"the agent's turn ended badly: {end.error}"
                new = {**now, "stage": "failing", "why": why, **({} if end.by_user else {"item": end.turn})}
            return {**doc, "merge": new}, ()

        self._entities.change(tenant, keys.task(tenant, task["id"]), note)
        return True

    def _hand_over(self, tenant: str, task: Document, record: Document, end: End) -> None:
        """The successor begins with the handoff; then the session is completed."""
        handoff = record["handoff"]
        made = self._turns.open(
            tenant, task, record["created_by"], record["model"], handoff["successor"], thread=record["thread_id"]
        )
        head = record.get("handoff_head") or self._head(tenant, task)
        if "handoff_head" not in record:
            # the same message each time, or its key would be refused
            record = self._change(tenant, record, lambda doc: ({**doc, "handoff_head": head}, ()))
        said = Said(
            end.text or "The session before you left no handoff.", record["handoff_head"], "byre", key=f"handoff:{end.turn}"
        )
        self._turns.say(tenant, task, made["id"], said)
        now = self._clock.text()
        payload = {"successor": made["id"]}
        happened = [
            happening(task, "session.completed", now, "byre", payload, record["id"]),
            happening(task, "session.state", now, "byre", {"state": "completed"}, record["id"]),
        ]
        gone = ("handoff", "handoff_head")

        def completed(doc: Document) -> tuple[Document, list[Any]]:
            left = {name: value for name, value in doc.items() if name not in gone}
            return {**left, "completed": True, "settled": end.turn, "successor": made["id"]}, happened

        self._change(tenant, record, completed)
        self._turns.log.coord.revoke(LogName(tenant, record["id"]).text, 0)

    def _settled(self, tenant: str, task: Document, record: Document, end: End, *, idle: bool) -> None:
        now = self._clock.text()
        state = [happening(task, "session.state", now, "byre", {"state": "idle"}, record["id"])] if idle else []

        def settled(doc: Document) -> tuple[Document, list[Any]] | None:
            if doc.get("settled") == end.turn:
                return None
            left = {name: value for name, value in doc.items() if name != "handoff"}
            return {**left, "settled": end.turn}, state

        self._change(tenant, record, settled)

    def _change(self, tenant: str, record: Document, how: Callable[[Document], Any]) -> Document:
        return self._entities.change(tenant, keys.task_session(tenant, record["task_id"], record["id"]), how)


def limit_id(turn: str) -> str:
    """The id of the inbox item that tells that a turn was parked by a vendor's limit."""
    return hashlib.sha256(f"{turn} rate_limited".encode()).hexdigest()[:32]


def read(log: Log, name: LogName, ended: Ended) -> End:
    """The end of a turn that was settled. Raises Unavailable if the log doesn't hold it (yet)."""
    assert isinstance(ended.since, int)
    purpose, text, inputs = "message", "", []
    after = log.position(name, ended.since - 1)
    while True:
        page = log.read(name, after, PAGE)
        for entry in page.entries:
            kind = events.kind_of(entry.raw)
            if kind not in SETTLING and kind not in ("turn.started", "assistant.message"):
                continue
            e = events.parse(entry.raw)
            if e["data"]["turn"] != ended.id:
                continue
            if kind == "turn.started":
                purpose, inputs = e["data"].get("purpose", "message"), e["data"]["inputs"]
            elif kind == "assistant.message":
                text = e["data"]["text"]
            else:
                return End(ended.id, purpose, inputs, kind, e["data"], text, entry.position)
        if page.end or not page.entries:
            raise Unavailable("the end of a turn can't be read now")
        after = page.entries[-1].position
