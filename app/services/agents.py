"""Agent sessions of tasks: Brain sessions whose workspace is a task's worktree.

Rules: what the engine keeps (config, status, the log) is not kept twice; byre's record adds what only byre knows. A task has at most
one turn that runs or waits. A session is idle only once a worker has done all that its last turn's end asks for (workers/follow.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.core.errors import Conflict, Invalid, Missing
from app.core.principal import Principal
from app.core.session import Status
from app.log import heads
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.tasks import Tasks, happening
from app.services.turns import Said, Turns
from app.services.writer import Clock
from app.store import keys
from app.store.keys import LogName

FIELDS = ("id", "task_id", "vendor", "model", "vendor_session_id", "role", "created_by", "created_at")
LONGEST_TEXT = 512 * 1024
LONGEST_MODEL = 200
MOST_IMAGES = 20
HANDOFF = "Write a handoff for the session that goes on with this task."
Document = dict[str, Any]
Documents = list[Document]
CheckImages = Callable[[str, list[str]], None]


class Agents:
    """All agent sessions of a deployment. `check_images` raises Invalid for ids that aren't blobs of the tenant."""

    def __init__(
        self, entities: Entities, tasks: Tasks, turns: Turns, inbox: Inbox, check_images: CheckImages, clock: Clock
    ) -> None:
        self._entities, self._tasks, self._turns, self._inbox, self._clock = entities, tasks, turns, inbox, clock
        self._check_images = check_images
        tasks.busy = self.busy
        tasks.let_go = self.let_go

    def create(self, principal: Principal, task_id: str, body: Document) -> Document:
        """A new session in the task's worktree, with the prompt as its first message. Raises Invalid, Missing, Conflict."""
        tenant, model = principal.tenant, _model(body)
        self._check_message(tenant, body["prompt"], body.get("images", []), "prompt")
        task = self._tasks.active(tenant, task_id)
        with self._turns.starting(tenant, task_id):
            task = self.check_idle(tenant, task_id)
            head = self._tasks.head(tenant, task)
            record = self._turns.open(tenant, task, principal.login or "", model, self._clock.id())
            said = Said(body["prompt"], head, principal.login or "", images=body.get("images", []))
            self._turns.say(tenant, task, record["id"], said)
        return self.shown(tenant, record, task)

    def message(self, principal: Principal, session: str, body: Document) -> Document:
        """Starts a turn with a message. Raises Invalid, Missing, Conflict unless every session of the task is idle."""
        tenant, model = principal.tenant, _model(body)
        self._check_message(tenant, body["text"], body.get("images", []), "text")
        record = self.record(tenant, session)
        with self._turns.starting(tenant, record["task_id"]):
            task = self.check_idle(tenant, record["task_id"])
            record = self.record(tenant, session)
            if record["completed"]:
                raise Conflict("the session is completed")
            switches = bool(model) and model != record["model"]
            if switches:
                record = self._switch(tenant, record, model)
            head = self._tasks.head(tenant, task)
            said = Said(body["text"], head, principal.login or "", body.get("images", []), model=model if switches else "")
            self._turns.say(tenant, task, session, said)
            self.supersede_blocking(tenant, record, "message")
        return self.shown(tenant, record, task)

    def compact(self, principal: Principal, session: str) -> Document:
        """Asks for a handoff, with which a worker begins the successor. Raises Missing, Conflict."""
        tenant = principal.tenant
        record = self.record(tenant, session)
        with self._turns.starting(tenant, record["task_id"]):
            task = self.check_idle(tenant, record["task_id"])
            if self.record(tenant, session)["completed"]:
                raise Conflict("the session is completed")
            head = self._tasks.head(tenant, task)
            handoff = {"successor": self._clock.id(), "login": principal.login or ""}
            record = self._change(tenant, record, lambda doc: ({**doc, "handoff": handoff}, ()))
            self._turns.say(tenant, task, session, Said(HANDOFF, head, "byre", purpose="handoff"))
            self.supersede_blocking(tenant, record, "message")
        return self.shown(tenant, record, task)

    def interrupt(self, principal: Principal, session: str) -> Document:
        """Ends the turn that runs, or withdraws the one that waits. Raises Missing, Conflict if there is neither."""
        tenant = principal.tenant
        record = self.record(tenant, session)
        with self._turns.starting(tenant, record["task_id"]):
            task = self._tasks.record(tenant, record["task_id"])
            ended = task["status"] == "active" and not record["completed"] and self._end_turn(principal, record, task)
            if not self.supersede_blocking(tenant, record, "interrupt") and not ended:
                raise Conflict("nothing runs")
        self._turns.poke(tenant, record["task_id"])
        return self.shown(tenant, record, task)

    def _end_turn(self, principal: Principal, record: Document, task: Document) -> bool:
        name = LogName(principal.tenant, record["id"])
        state = self._turns.log.state(name)
        merge = task.get("merge")
        if state.status is Status.QUEUED:
            try:
                for waiting in state.queue:
                    self._turns.inputs.withdraw(name, waiting.id)
            except Conflict:
                # it has begun meanwhile
                state = self._turns.log.state(name)
            else:
                self._withdrawn(principal, record, task)
                return True
        if state.status is Status.RUNNING:
            told = self._turns.inputs.send(name, record["vendor"], {"type": "user.interrupt"}, principal.login)
            return bool(told["status"] == "interrupting")
        if merge and merge["session"] == record["id"] and merge["stage"] == "waiting":
            self._withdrawn(principal, record, task)
            return True
        return False

    def _withdrawn(self, principal: Principal, record: Document, task: Document) -> None:
        """What was to come of a turn that never began doesn't come: a merge, a handoff."""
        now = self._clock.text()
        login = principal.login or ""
        if task.get("merge"):

            def forget(doc: Document) -> tuple[Document, list[Any]] | None:
                merge = doc.get("merge")
                if not merge or merge["stage"] not in ("waiting", "turn"):
                    return None
                failed = happening(doc, "merge.failed", now, login, {"reason": "it was interrupted"}, record["id"])
                return {name: value for name, value in doc.items() if name != "merge"}, [failed]

            self._tasks.change(principal.tenant, task["id"], forget)
        idle = happening(task, "session.state", now, "byre", {"state": "idle", "reason": "interrupted"}, record["id"])
        left = self._change(principal.tenant, record, lambda doc: ({n: v for n, v in doc.items() if n != "handoff"}, [idle]))
        record.update(left)

    def supersede_blocking(self, tenant: str, record: Document, reason: str) -> bool:
        """Settles the open blocking questions of a session's thread as superseded; whether there were any."""
        found = self._inbox.open_of_task(
            tenant, record["task_id"], lambda item: item["blocking"] and item["thread_id"] == record["thread_id"]
        )
        self._inbox.supersede(tenant, found, reason)
        return bool(found)

    def _switch(self, tenant: str, record: Document, model: str) -> Document:
        name = LogName(tenant, record["id"])

        def config(head: heads.LogHead) -> Document:
            return {"config": {**head.doc["config"], "model": model}}

        log = self._turns.log
        log.keep(name, heads.change(log.store, name, config, log.pace))
        # whoever keeps the agent warm knows the old model only
        log.coord.revoke(name.text, 0)
        return self._change(tenant, record, lambda doc: ({**doc, "model": model}, ()))

    def _change(self, tenant: str, record: Document, how: Callable[[Document], tuple[Document, Sequence[Any]]]) -> Document:
        return self._entities.change(tenant, keys.task_session(tenant, record["task_id"], record["id"]), how)

    def get(self, principal: Principal, session: str) -> Document:
        """The session. Raises Missing."""
        record = self.record(principal.tenant, session)
        return self.shown(principal.tenant, record, self._tasks.record(principal.tenant, record["task_id"]))

    def list(self, principal: Principal, task_id: str) -> Documents:
        """The task's sessions, oldest first. Raises Missing."""
        self._tasks.record(principal.tenant, task_id)
        records = self._turns.sessions(principal.tenant, task_id)
        task = self._tasks.record(principal.tenant, task_id)
        return [self.shown(principal.tenant, record, task) for record in records]

    def record(self, tenant: str, session: str) -> Document:
        """byre's record of a session. Raises Missing, also for a Brain session without a task."""
        if not keys.is_id(session):
            raise Missing("no such session")
        about = self._turns.log.head(LogName(tenant, session)).doc.get("task")
        if about is None:
            raise Missing("no such session")
        return self._entities.get(tenant, keys.task_session(tenant, about["task_id"], session), "session")

    def shown(self, tenant: str, record: Document, task: Document) -> Document:
        """The contract's AgentSession."""
        return {**{name: record[name] for name in FIELDS}, "state": self._turns.state(tenant, record, task)}

    def busy(self, tenant: str, task_id: str) -> bool:
        """Whether a turn of the task runs or waits, or a merge is on its way."""
        return self._turns.busy(tenant, self._tasks.record(tenant, task_id))

    def let_go(self, tenant: str, task_id: str) -> None:
        """Makes whoever keeps a process of the task's sessions warm end it."""
        for record in self._turns.sessions(tenant, task_id):
            self._turns.log.coord.revoke(LogName(tenant, record["id"]).text, 0)

    def check_idle(self, tenant: str, task_id: str) -> Document:
        """The task, if it is active and nothing of it runs or waits. Raises Missing, Conflict."""
        task = self._tasks.active(tenant, task_id)
        if self._turns.busy(tenant, task):
            raise Conflict("a turn of this task runs or waits")
        return task

    def _check_message(self, tenant: str, text: str, images: Sequence[str], field: str) -> None:
        if not text.strip() and not images:
            raise Invalid(f"{field}: must not be empty", field)
        if len(text) > LONGEST_TEXT:
            raise Invalid(f"{field}: at most {LONGEST_TEXT} characters", field)
        if len(images) > MOST_IMAGES:
            raise Invalid(f"images: at most {MOST_IMAGES}", "images")
        self._check_images(tenant, list(images))


def _model(body: Document) -> str:
    model = str(body.get("model", "")).strip()
    if len(model) > LONGEST_MODEL or any(ord(letter) < 33 for letter in model):
        raise Invalid(f"model: at most {LONGEST_MODEL} characters, without spaces", "model")
    return model
