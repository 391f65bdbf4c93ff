"""Agent sessions of tasks: Brain sessions whose workspace is a task's worktree.

Rules: what the engine keeps (config, status, the log) is not kept twice; byre's record adds what only byre knows. A task has at most
one turn that runs or waits. A session that the engine shows as interrupted or failed is idle here: byre resumes it before the next
message.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from app.core.errors import Conflict, Invalid, Missing
from app.core.principal import Principal
from app.core.session import Status
from app.log import heads
from app.log.log import Log
from app.services.entities import Entities
from app.services.inputs import Inputs
from app.services.restoring import Restoring
from app.services.tasks import Tasks, happening
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock
from app.store import keys
from app.store.keys import LogName

BUSY = (Status.QUEUED, Status.RUNNING)
FIELDS = ("id", "task_id", "vendor", "model", "vendor_session_id", "role", "created_by", "created_at")
Document = dict[str, Any]
Documents = list[Document]


class Agents:
    """All agent sessions of a deployment. `vendor` is the harness of new ones."""

    def __init__(
        self,
        entities: Entities,
        tasks: Tasks,
        log: Log,
        workspace: WorkspaceLog,
        inputs: Inputs,
        restoring: Restoring,
        clock: Clock,
        vendor: str,
    ) -> None:
        self._entities, self._tasks, self._log, self._workspace = entities, tasks, log, workspace
        self._inputs, self._restoring, self._clock, self._vendor = inputs, restoring, clock, vendor
        tasks.busy = self.busy
        tasks.let_go = self.let_go

    def create(self, principal: Principal, task_id: str, body: Document) -> Document:
        """A new session in the task's worktree, with the prompt as its first message. Raises Invalid, Missing, Conflict."""
        _check_message(body["prompt"], body.get("images", []), "prompt")
        task = self._tasks.active(principal.tenant, task_id)
        self._check_idle(principal.tenant, task_id)
        head = self._tasks.head(principal.tenant, task)
        session = self._clock.id()
        name = LogName(principal.tenant, session)
        now = self._clock.text()
        model = body.get("model", "")
        about = {"task_id": task_id, "project_id": task["project_id"], "title": task["title"]}
        doc = {
            "id": session,
            "tenant": principal.tenant,
            "harness": self._vendor,
            "config": {"model": model, "tools": []},
            "task": about,
            "descriptors": [],
            "created_by": principal.login or "",
            "created_at": now,
        }
        record = {
            "id": session,
            "task_id": task_id,
            "project_id": task["project_id"],
            "vendor": self._vendor,
            "model": model,
            "vendor_session_id": str(uuid.UUID(session)),
            "role": "implementer",
            "completed": False,
            "thread_id": session,
            "created_by": principal.login or "",
            "created_at": now,
        }
        self._log.keep(name, heads.create(self._log.store, name, self._log.coord.incarnation(), doc, self._log.pace))
        payload = {name: record[name] for name in ("vendor", "model", "role", "vendor_session_id")}
        happened = happening(task, "session.created", now, principal.login or "", payload, session)
        self._entities.create(principal.tenant, keys.task_session(principal.tenant, task_id, session), record, [happened])
        self._say(principal, task, session, body["prompt"], body.get("images", []), head)
        return self.shown(principal.tenant, record)

    def message(self, principal: Principal, session: str, body: Document) -> Document:
        """Starts a turn with a message. Raises Invalid, Missing, Conflict unless every session of the task is idle."""
        _check_message(body["text"], body.get("images", []), "text")
        record = self.record(principal.tenant, session)
        task = self._tasks.active(principal.tenant, record["task_id"])
        if record["completed"]:
            raise Conflict("the session is completed")
        self._check_idle(principal.tenant, task["id"])
        name = LogName(principal.tenant, session)
        if self._log.state(name).status in (Status.INTERRUPTED, Status.FAILED):
            self._restoring.resume(name)
        if body.get("model") and body["model"] != record["model"]:
            record = self._switch(principal.tenant, record, body["model"])
        head = self._tasks.head(principal.tenant, task)
        self._say(principal, task, session, body["text"], body.get("images", []), head)
        return self.shown(principal.tenant, record)

    def _say(self, principal: Principal, task: Document, session: str, text: str, images: Sequence[str], head: str) -> None:
        data: Document = {"text": text, "actor": principal.login or "", "head": head}
        if images:
            data["images"] = list(images)
        event = self._inputs.message(LogName(principal.tenant, session), data, None)
        payload = {"text": text, "head": head, **({"images": list(images)} if images else {})}
        said = happening(task, "user.message", event["time"], principal.login or "", payload, session)
        waiting = {"id": event["id"], "kind": said.kind, "time": said.time, "data": said.data}
        self._workspace.publish(principal.tenant, [waiting])

    def _switch(self, tenant: str, record: Document, model: str) -> Document:
        key = keys.task_session(tenant, record["task_id"], record["id"])
        name = LogName(tenant, record["id"])

        def config(head: heads.LogHead) -> Document:
            return {"config": {**head.doc["config"], "model": model}}

        self._log.keep(name, heads.change(self._log.store, name, config, self._log.pace))
        return self._entities.change(tenant, key, lambda doc: ({**doc, "model": model}, ()))

    def get(self, principal: Principal, session: str) -> Document:
        """The session. Raises Missing."""
        return self.shown(principal.tenant, self.record(principal.tenant, session))

    def list(self, principal: Principal, task_id: str) -> Documents:
        """The task's sessions, oldest first. Raises Missing."""
        self._tasks.record(principal.tenant, task_id)
        return [self.shown(principal.tenant, record) for record in self._of_task(principal.tenant, task_id)]

    def record(self, tenant: str, session: str) -> Document:
        """byre's record of a session. Raises Missing, also for a Brain session without a task."""
        if not keys.is_id(session):
            raise Missing("no such session")
        about = self._log.head(LogName(tenant, session)).doc.get("task")
        if about is None:
            raise Missing("no such session")
        return self._entities.get(tenant, keys.task_session(tenant, about["task_id"], session), "session")

    def shown(self, tenant: str, record: Document) -> Document:
        """The contract's AgentSession."""
        shown = {name: record[name] for name in FIELDS}
        if record["completed"]:
            return {**shown, "state": "completed"}
        status = self._log.state(LogName(tenant, record["id"])).status
        return {**shown, "state": str(status) if status in BUSY else "idle"}

    def busy(self, tenant: str, task_id: str) -> bool:
        """Whether a turn of the task runs or waits."""
        return any(
            self._log.state(LogName(tenant, record["id"])).status in BUSY
            for record in self._of_task(tenant, task_id)
            if not record["completed"]
        )

    def let_go(self, tenant: str, task_id: str) -> None:
        """Makes whoever keeps a process of the task's sessions warm end it."""
        for record in self._of_task(tenant, task_id):
            self._log.coord.revoke(LogName(tenant, record["id"]).text, 0)

    def _check_idle(self, tenant: str, task_id: str) -> None:
        if self.busy(tenant, task_id):
            raise Conflict("a turn of this task runs or waits")

    def _of_task(self, tenant: str, task_id: str) -> Documents:
        return self._entities.many(tenant, self._entities.listed(keys.task_sessions_prefix(tenant, task_id)))


def _check_message(text: str, images: Sequence[str], field: str) -> None:
    if not text.strip() and not images:
        raise Invalid(f"{field}: must not be empty", field)
