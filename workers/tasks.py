"""What needs a repository: projects are opened, tasks get their worktrees, changes are compared. Answers requests of API processes.

Rules: git is started by `app/git` only, on directories under the repository roots; a task's worktree is at the same path on every
worker with the same BYRE_WORKSPACES; a record is created after what it describes is there, and nothing is removed before its record
says that it is closed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from app.coord.requests import Requests
from app.core.errors import ByreError, Conflict, Invalid, Unavailable
from app.git import changes, credentials, diff, projects, remotes, todo, worktrees
from app.git.projects import Opened
from app.git.repo import Worktree
from app.git.view import Views
from app.services.entities import Entities
from app.services.tasks import happening
from app.services.writer import Clock
from app.store import keys

Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Roots(NamedTuple):
    """Where repositories may lie, and where worktrees are made."""

    repositories: tuple[Path, ...]
    workspaces: Path


class TaskWork:
    """The git half of byre on one worker. `host` names what shares this worker's disk."""

    def __init__(self, views: Views, roots: Roots, entities: Entities, requests: Requests, host: str, clock: Clock) -> None:
        self._views, self._roots, self._entities = views, roots, entities
        self._requests, self._host, self._clock = requests, host, clock

    def handlers(self) -> dict[str, Callable[[Document], Any]]:
        """By the kind of request."""
        return {
            "project.open": self.project_open,
            "project.todo": self.project_todo,
            "task.create": self.create,
            "task.remove": self.remove,
            "task.changes": self.changes,
            "task.diff": self.diff,
            "task.unmerged": self.unmerged,
            "task.head": self.head,
        }

    def opened(self, project: Document) -> Opened:
        """The project's repository. Raises Invalid if it can't be used (any more)."""
        return projects.open_directory(self._views, project["repo_path"], self._roots.repositories)

    def worktree(self, project: Document, task: Document) -> Worktree:
        """The task's worktree, which must be here. Raises Unavailable."""
        worktree = Worktree(self.opened(project).repo, Path(task["worktree_path"]), task["id"])
        if not worktrees.is_whole(worktree):
            raise Unavailable("the task's worktree isn't on this worker")
        return worktree

    def project_open(self, body: Document) -> Document:
        """Opens the repository of a project that is to be created. Raises Invalid."""
        text = body["repo_path"]
        if remotes.is_address(text):
            remotes.remote(text, self._roots.repositories)
            raise Invalid("repo_path: projects of git addresses aren't built yet; give the directory of a clone", "repo_path")
        found = projects.open_directory(self._views, text, self._roots.repositories)
        return {
            "repo_path": str(found.repo.checkout),
            "kind": "directory",
            "default_branch": found.default_branch,
            "remote": found.remote,
            "notes": list(found.notes),
        }

    def project_todo(self, body: Document) -> Document:
        """The items of TODO.md on the default branch."""
        found = self.opened(body["project"])
        tip = projects.default_tip(found.repo, found.default_branch)
        content = projects.read_file(found.repo, tip, "TODO.md")
        if content is None:
            return {"exists": False, "items": []}
        return {"exists": True, "items": [item._asdict() for item in todo.items(content.decode("utf-8", "replace"))]}

    def create(self, body: Document) -> Document:
        """Branch, worktree and record of a new task. Raises Invalid, Conflict, Unavailable."""
        tenant, project, task_id = body["tenant"], body["project"], body["task"]
        found = self.opened(project)
        notes = self._refresh(found)
        commit = projects.default_tip(found.repo, found.default_branch)
        branch = worktrees.branch_name(body["title"], task_id)
        path = self._roots.workspaces / "tasks" / tenant / task_id
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        worktrees.create(found.repo, path, task_id, branch, commit)
        now = self._clock.text()
        doc: Document = {
            "id": task_id,
            "project_id": project["id"],
            "title": body["title"],
            "merge_title": body["title"],
            "branch": branch,
            "worktree_path": str(path),
            "base_ref": commit,
            "status": "active",
            "created_by": body["login"],
            "created_at": now,
        }
        payload: Document = {"title": body["title"], "branch": branch, "base_ref": commit}
        if "todo_item" in body:
            doc["todo_item"] = payload["todo_item"] = body["todo_item"]
        if notes:
            payload["note"] = "; ".join(notes)
        self._entities.mark(keys.project_task(tenant, project["id"], task_id))
        happened = happening(doc, "task.created", now, body["login"], payload)
        made = self._entities.create(tenant, keys.task(tenant, task_id), doc, [happened])
        self._requests.holds(tenant, task_id, self._host)
        return made

    def _refresh(self, found: Opened) -> list[str]:
        """Fetches origin, if there is one that answers soon; gives what is to be known if it doesn't."""
        if found.origin is None:
            return []
        try:
            with credentials.access(self._views.git, found.origin) as access:
                projects.fetch(found.repo, found.origin, access)
        except ByreError as error:
            return [f"origin was not fetched: {error.message}"]
        return []

    def remove(self, body: Document) -> Document:
        """Removes what a closed task has left here: worktree, branch, snapshot refs. Raises Conflict for an active one."""
        tenant, task = body["tenant"], body["task"]
        if self._entities.get(tenant, keys.task(tenant, task["id"]), "task")["status"] == "active":
            raise Conflict("the task is active")
        worktree = Worktree(self.opened(body["project"]).repo, Path(task["worktree_path"]), task["id"])
        left = worktrees.remove(worktree, task["branch"])
        self._requests.gone(tenant, task["id"])
        for note in left:
            logger.warning("not all of a task could be removed", task=task["id"], why=note)
        return {"left": left}

    def changes(self, body: Document) -> Document:
        """The contract's TaskChanges."""
        project, task, query = body["project"], body["task"], body["query"]
        worktree = self.worktree(project, task)
        tip = projects.default_tip(worktree.repo, project["default_branch"])
        if "snapshot" in query:
            step = bool(query.get("step"))
            found = changes.of_snapshot(worktree, task["id"], query["snapshot"], tip, task["base_ref"], step=step)
        else:
            found = changes.live(worktree, tip, task["base_ref"], query.get("since"))
        return found.to_json()

    def diff(self, body: Document) -> Document:
        """The contract's FileDiff."""
        task, query = body["task"], body["query"]
        worktree = self.worktree(body["project"], task)
        made = diff.file_diff(
            worktree,
            task["id"],
            query["base"],
            query["tree"],
            query["path"],
            query.get("old_path"),
            base_ref=task["base_ref"],
        )
        return {"path": made.path, "patch": made.patch}

    def unmerged(self, body: Document) -> Document:
        """The contract's Unmerged."""
        project, task = body["project"], body["task"]
        worktree = self.worktree(project, task)
        tip = projects.default_tip(worktree.repo, project["default_branch"])
        return dataclasses.asdict(changes.unmerged(worktree, tip, task["base_ref"]))

    def head(self, body: Document) -> str:
        """The commit that the worktree is on."""
        return self.worktree(body["project"], body["task"]).head().commit or ""
