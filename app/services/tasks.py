"""Tasks: a branch and a worktree of a project, with the work of agents in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from app.coord.requests import Requests
from app.core.errors import ByreError, Conflict, Invalid
from app.core.principal import Principal
from app.services.entities import Entities
from app.services.projects import Projects
from app.services.workspace_log import Happening, WorkspaceLog
from app.services.workspace_log import shown as event_shown
from app.services.writer import Clock
from app.store import keys

CREATE_SECONDS = 60.0
WORK_SECONDS = 30.0
LOST_SECONDS = 10.0
"""For what a discard loses to be listed; it goes on without."""
LONGEST_TITLE = 500
FIELDS = (
    "id",
    "project_id",
    "title",
    "merge_title",
    "branch",
    "worktree_path",
    "base_ref",
    "status",
    "created_by",
    "created_at",
)
OPTIONAL = ("closed_at", "merge_commit", "todo_item")
PAGE = 500
Document = dict[str, Any]
Documents = list[Document]
Paths = list[str]

logger = structlog.get_logger(__name__)


class Tasks:
    """All tasks of a deployment. `busy` says whether a turn of a task runs or waits."""

    def __init__(self, entities: Entities, projects: Projects, log: WorkspaceLog, requests: Requests, clock: Clock) -> None:
        self._entities, self._projects, self._log = entities, projects, log
        self._requests, self._clock = requests, clock
        self.busy: Callable[[str, str], bool] = lambda tenant, task: False
        self.let_go: Callable[[str, str], None] = lambda tenant, task: None

    def create(self, principal: Principal, project_id: str, title: str, todo_item: str | None = None) -> Document:
        """Creates branch, worktree and record (a worker does). Raises Invalid, Missing, Conflict, Unavailable."""
        title = title.strip()
        if not title or len(title) > LONGEST_TITLE:
            raise Invalid(f"title: must have 1 to {LONGEST_TITLE} characters", "title")
        if "\n" in title or "\r" in title:
            raise Invalid("title: must be one line", "title")
        project = self._projects.record(principal.tenant, project_id)
        if todo_item is not None and self._has_item(principal.tenant, project_id, todo_item):
            raise Conflict("an active task has this item already")
        asked: Document = {
            "tenant": principal.tenant,
            "project": project,
            "task": self._clock.id(),
            "title": title,
            "login": principal.login,
        }
        if todo_item is not None:
            asked["todo_item"] = todo_item
        made: Document = self._requests.ask("task.create", asked, CREATE_SECONDS)
        return shown(made)

    def _has_item(self, tenant: str, project_id: str, item: str) -> bool:
        return any(t["status"] == "active" and t.get("todo_item") == item for t in self._of_project(tenant, project_id))

    def list(self, principal: Principal, project_id: str) -> Documents:
        """The project's tasks, newest first. Raises Missing."""
        self._projects.record(principal.tenant, project_id)
        return [shown(doc) for doc in self._of_project(principal.tenant, project_id)]

    def _of_project(self, tenant: str, project_id: str) -> Documents:
        found = sorted(self._entities.listed(keys.project_tasks_prefix(tenant, project_id)), reverse=True)
        return self._entities.many(tenant, [keys.task(tenant, keys.last_part(key)) for key in found])

    def record(self, tenant: str, task_id: str) -> Document:
        """The task's own document. Raises Missing."""
        return self._entities.get(tenant, keys.task(tenant, task_id), "task")

    def active(self, tenant: str, task_id: str) -> Document:
        """The document of a task that isn't closed. Raises Missing, Conflict."""
        task = self.record(tenant, task_id)
        if task["status"] != "active":
            raise Conflict(f"the task is {task['status']}")
        return task

    def get(self, principal: Principal, task_id: str) -> Document:
        """The task. Raises Missing."""
        return shown(self.record(principal.tenant, task_id))

    def change(
        self, tenant: str, task_id: str, how: Callable[[Document], tuple[Document, Sequence[Happening]] | None]
    ) -> Document:
        """Changes the record by CAS. Raises Missing."""
        return self._entities.change(tenant, keys.task(tenant, task_id), how)

    def discard(self, principal: Principal, task_id: str) -> Document:
        """Removes worktree, branch and snapshot refs; the record stays. Raises Conflict if it is closed, or a turn runs or waits."""
        task = self.active(principal.tenant, task_id)
        if self.busy(principal.tenant, task_id):
            raise Conflict("a turn of this task runs or waits: interrupt it first")
        self.let_go(principal.tenant, task_id)
        lost = self._lost(principal.tenant, task)
        now = self._clock.text()

        def close(doc: Document) -> tuple[Document, list[Happening]]:
            if doc["status"] != "active":
                raise Conflict(f"the task is {doc['status']}")
            happened = happening(doc, "task.discarded", now, principal.login or "", {"lost": lost} if lost else {})
            return {**doc, "status": "discarded", "closed_at": now}, [happened]

        closed = self.change(principal.tenant, task_id, close)
        try:
            self._work(principal.tenant, task, "task.remove", {})
        except ByreError as error:
            # closed is closed: the worker that has the worktree finds it in its next round
            logger.warning("a closed task is not removed yet", task=task_id, why=error.message)
        return shown(closed)

    def _lost(self, tenant: str, task: Document) -> Paths:
        """Paths that go with the task and that no snapshot holds; empty if nobody can say."""
        try:
            found: Paths = self._work(tenant, task, "task.lost", {})
        except ByreError:
            return []
        return found

    def changes(self, principal: Principal, task_id: str, query: Document) -> Document:
        """Per-file statistics of the worktree or of a snapshot. Raises Invalid, Missing, Conflict, Unavailable."""
        if "since" in query and "snapshot" in query:
            raise Invalid("since: not together with snapshot", "since")
        if query.get("step") and "snapshot" not in query:
            raise Invalid("step: needs snapshot", "step")
        task = self.active(principal.tenant, task_id)
        answer: Document = self._work(principal.tenant, task, "task.changes", query)
        return answer

    def diff(self, principal: Principal, task_id: str, query: Document) -> Document:
        """The patch of one file. Raises Invalid, Missing, Conflict, Unavailable."""
        task = self.active(principal.tenant, task_id)
        answer: Document = self._work(principal.tenant, task, "task.diff", query)
        return answer

    def unmerged(self, principal: Principal, task_id: str) -> Document:
        """What the worktree holds that the default branch doesn't. Raises Missing, Conflict, Unavailable."""
        task = self.active(principal.tenant, task_id)
        answer: Document = self._work(principal.tenant, task, "task.unmerged", {})
        return answer

    def head(self, tenant: str, task: Document) -> str:
        """The commit that the worktree is on. Raises Unavailable."""
        return str(self._work(tenant, task, "task.head", {}))

    def merge_target(self, tenant: str, task: Document) -> Document:
        """What is to be merged in: the default `branch`, just fetched, as `ref`, and the worktree's `head`. Raises Unavailable."""
        target: Document = self._work(tenant, task, "task.target", {})
        return target

    def snapshots(self, principal: Principal, task_id: str) -> Documents:
        """The task's snapshots, oldest first. Raises Missing."""
        self.record(principal.tenant, task_id)
        found = self._entities.listed(keys.snapshots_prefix(principal.tenant, task_id))
        return self._entities.many(principal.tenant, found)

    def events(self, principal: Principal, task_id: str, after: int, limit: int) -> Documents:
        """Up to `limit` of the task's events after a `seq`, oldest first. Raises Missing."""
        self.record(principal.tenant, task_id)
        out: list[Document] = []
        needle = f'"task_id":"{task_id}"'.encode()
        while len(out) < limit:
            page = self._log.page(principal.tenant, after, PAGE)
            if not page:
                break
            for entry in page:
                after = entry.position.offset + 1
                if needle in entry.raw and len(out) < limit:
                    out.append(event_shown(entry))
        return out

    def _work(self, tenant: str, task: Document, kind: str, query: Document, seconds: float = WORK_SECONDS) -> Any:
        project = self._projects.record(tenant, task["project_id"])
        host = self._requests.holder(tenant, task["id"])
        return self._requests.ask(kind, {"tenant": tenant, "project": project, "task": task, "query": query}, seconds, host)


def shown(doc: Document) -> Document:
    """The contract's Task."""
    return {**{name: doc[name] for name in FIELDS}, **{name: doc[name] for name in OPTIONAL if name in doc}}


def happening(task: Document, kind: str, time: str, actor: str, payload: Document, session: str = "") -> Happening:
    """Something that happened to a task."""
    data = {"project_id": task["project_id"], "task_id": task["id"], "actor": actor, "payload": payload}
    return Happening(kind, time, {**data, "agent_session_id": session} if session else data)
