"""Beginning turns of agent sessions: sessions are opened here and messages given to them, by people and by byre itself.

Rules: before a message is in a session's log the task is marked as one that something is owed to, so that whatever comes of the turn is
taken care of even if nobody is left who knows of it; a message has a key where it may be given again after a crash; what a person said
is told in the workspace log by whoever accepted it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import structlog

from app.coord.owed import Owed
from app.coord.requests import Requests
from app.core.errors import Conflict, Unavailable
from app.core.session import Status
from app.log import heads
from app.log.log import Log
from app.services import byre_tools
from app.services.entities import Entities
from app.services.inputs import Inputs
from app.services.restoring import Restoring
from app.services.tasks import happening
from app.services.told import told
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.keys import LogName

BUSY = (Status.QUEUED, Status.RUNNING)
POKE_SECONDS = 5.0
LOOK_MS = 5_000
"""When a task is looked at if nobody says that it is time to."""
Document = dict[str, Any]
Documents = list[Document]

logger = structlog.get_logger(__name__)


class Said(NamedTuple):
    """A message to an agent. `actor` is whose it is; `purpose` and `merge_ref` as in a harness's Turn; `answers` whose answers it brings.

    `key`: the same key is the same message, however often it is given. `alone`: only to a session that is idle.
    """

    text: str
    head: str
    actor: str
    images: Sequence[str] = ()
    purpose: str = "message"
    merge_ref: str = ""
    answers: Sequence[Document] = ()
    model: str = ""
    key: str | None = None
    alone: bool = True


class Turns:
    """`vendor` is the harness of new sessions."""

    def __init__(
        self,
        store: Store,
        entities: Entities,
        log: Log,
        workspace: WorkspaceLog,
        inputs: Inputs,
        restoring: Restoring,
        requests: Requests,
        owed: Owed,
        clock: Clock,
        vendor: str,
    ) -> None:
        self._store, self._entities, self.log, self._workspace = store, entities, log, workspace
        self.inputs, self.restoring = inputs, restoring
        self._requests, self.owed, self._clock, self._vendor = requests, owed, clock, vendor

    @contextmanager
    def starting(self, tenant: str, task: str) -> Iterator[None]:
        """Held while it is looked whether a task is idle and something is begun. Raises Overloaded, Unavailable."""
        with self.owed.starting(tenant, task):
            yield

    def owe(self, tenant: str, task: str) -> None:
        """Marks the task as one that something may be owed to. Raises Unavailable."""
        self._entities.mark(keys.owed(tenant, task))
        self.owed.soon(tenant, task, LOOK_MS)

    def poke(self, tenant: str, task: str) -> None:
        """Has a worker look at the task now. One that can't be reached looks by itself, later."""
        try:
            self.owed.soon(tenant, task)
            host = self._requests.holder(tenant, task)
            self._requests.tell("task.follow", {"tenant": tenant, "task": task}, POKE_SECONDS, host)
        except Unavailable:
            logger.info("no worker was told of a task", task=task)

    def open(self, tenant: str, task: Document, login: str, model: str, session: str, thread: str = "") -> Document:
        """The session `session` in the task's worktree, made if it isn't there yet; gives byre's record of it. Raises Unavailable."""
        name = LogName(tenant, session)
        now = self._clock.text()
        about = {"task_id": task["id"], "project_id": task["project_id"], "title": task["title"]}
        doc = {
            "id": session,
            "tenant": tenant,
            "harness": self._vendor,
            "config": {"model": model, "tools": []},
            "task": about,
            **byre_tools.offered(),
            "created_by": login,
            "created_at": now,
        }
        record = {
            "id": session,
            "task_id": task["id"],
            "project_id": task["project_id"],
            "vendor": self._vendor,
            "model": model,
            "vendor_session_id": str(uuid.UUID(session)),
            "role": "implementer",
            "completed": False,
            "thread_id": thread or session,
            "created_by": login,
            "created_at": now,
        }
        try:
            self.log.keep(name, heads.create(self.log.store, name, self.log.coord.incarnation(), doc, self.log.pace))
        except PreconditionFailed:
            logger.info("a session was there already", session=session)
        payload = {name: record[name] for name in ("vendor", "model", "role", "vendor_session_id", "thread_id")}
        happened = happening(task, "session.created", now, login, payload, session)
        key = keys.task_session(tenant, task["id"], session)
        try:
            return self._entities.create(tenant, key, record, [happened])
        except Conflict:
            return self._entities.get(tenant, key, "session")

    def say(self, tenant: str, task: Document, session: str, said: Said) -> None:
        """Gives a session a message. Raises Conflict if it doesn't take one, Overloaded, Unavailable."""
        self.owe(tenant, task["id"])
        self._note(tenant, task, said)
        name = LogName(tenant, session)
        data: Document = {"text": said.text, "actor": said.actor, "head": said.head}
        if said.purpose != "message":
            data["purpose"] = said.purpose
        given = {"merge_ref": said.merge_ref, "images": list(said.images), "answers": list(said.answers), "model": said.model}
        data |= {name: value for name, value in given.items() if value}
        event = self.inputs.message(name, data, said.key, alone=said.alone)
        about = {"project_id": task["project_id"], "task_id": task["id"]}
        self._workspace.publish(tenant, told(about, session, event))

    def _note(self, tenant: str, task: Document, said: Said) -> None:
        """Remembers who has a message in the task's transcript, in the order of their first one."""
        people = [answer["login"] for answer in said.answers] or [said.actor]
        new = [login for login in dict.fromkeys(people) if login != "byre" and login not in task.get("participants", [])]
        if not new:
            return

        def noted(doc: Document) -> tuple[Document, tuple[()]] | None:
            known = doc.get("participants", [])
            more = [login for login in new if login not in known]
            return ({**doc, "participants": [*known, *more]}, ()) if more else None

        self._entities.change(tenant, keys.task(tenant, task["id"]), noted)

    # What a session and a task are doing

    def sessions(self, tenant: str, task: str) -> Documents:
        """byre's records of the task's sessions, oldest first."""
        return self._entities.many(tenant, self._entities.listed(keys.task_sessions_prefix(tenant, task)))

    def state(self, tenant: str, record: Document, task: Document) -> str:
        """The contract's state of a session. `record` must have been read before, so that nothing is shown as settled too early."""
        if record["completed"]:
            return "completed"
        state = self.log.state(LogName(tenant, record["id"]))
        if state.status in BUSY:
            return str(state.status)
        if state.ended and state.ended.id != record.get("settled"):
            return "running"
        merge = task.get("merge")
        if merge and merge["session"] == record["id"]:
            return "queued" if merge["stage"] == "waiting" else "running"
        return "idle"

    def busy(self, tenant: str, task: Document) -> bool:
        """Whether a turn of the task runs or waits, or a merge is on its way."""
        if task.get("merge"):
            return True
        return any(
            self.state(tenant, record, task) not in ("idle", "completed") for record in self.sessions(tenant, task["id"])
        )
