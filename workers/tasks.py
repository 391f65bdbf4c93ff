"""What needs a repository: projects are opened, tasks get their worktrees, changes are compared. Answers requests of API processes.

Rules: git is started by `app/git` only, on directories under the repository roots; a record is created after what it describes is
there, and nothing is removed before its record says that it is closed. A question about a task is answered from its worktree where that
is here, and from its bundles where nobody has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import structlog

from app.core.errors import Conflict, Unavailable
from app.git import changes, diff, projects, resting, snapshots, submodules, todo, worktrees
from app.git.changes import TaskChanges
from app.git.repo import Rested, Worktree
from app.services.entities import Entities
from app.services.tasks import happening
from app.services.writer import Clock
from app.store import keys
from workers.places import Places

SUBMODULE_SECONDS = 20.0
"""For the submodules of a new worktree; whoever creates a task waits for them."""
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class TaskWork:
    """The git half of byre on one worker."""

    def __init__(self, places: Places, entities: Entities, clock: Clock) -> None:
        self.places, self.repositories = places, places.repositories
        self._entities, self._clock = entities, clock

    def handlers(self) -> dict[str, Callable[[Document], Any]]:
        """By the kind of request."""
        return {
            "project.open": self.project_open,
            "project.todo": self.project_todo,
            "task.create": self.create,
            "task.remove": self.remove,
            "task.leave": self.leave,
            "task.lost": self.lost,
            "task.changes": self.changes,
            "task.diff": self.diff,
            "task.unmerged": self.unmerged,
            "task.head": self.head,
        }

    def opened(self, project: Document) -> projects.Opened:
        """The project's repository. Raises Invalid if it can't be used (any more), Unavailable."""
        return self.repositories.opened(project)

    def worktree(self, project: Document, task: Document) -> Worktree:
        """The task's worktree, which must be here. Raises Unavailable."""
        found = self.places.here(project, task)
        if found is None:
            raise Unavailable("the task's worktree isn't on this worker")
        return found

    def project_open(self, body: Document) -> Document:
        """Opens the repository of a project that is to be created. Raises Invalid, Unavailable."""
        return self.repositories.open_new(body["tenant"], body["project"], body["name"], body["repo_path"])

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
        notes = self.repositories.refresh(project, found)
        commit = projects.default_tip(found.repo, found.default_branch)
        branch = worktrees.branch_name(body["title"], task_id)
        path = self.places.path({"tenant": tenant, "id": task_id})
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made_here = worktrees.create(found.repo, path, task_id, branch, commit)
        roots = self.repositories.roots.repositories
        notes += submodules.fill(
            made_here, found.origin, roots, lambda remote: self.repositories.access(project, remote), SUBMODULE_SECONDS
        )
        now = self._clock.text()
        doc: Document = {
            "id": task_id,
            "tenant": tenant,
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
        self.places.requests.holds(tenant, task_id, self.places.host)
        return made

    def remove(self, body: Document) -> Document:
        """Removes what a closed task has left here and in the store: worktree, branch, refs, bundles. Raises Conflict for an active one."""
        tenant, task = body["tenant"], body["task"]
        if self._entities.get(tenant, keys.task(tenant, task["id"]), "task")["status"] == "active":
            raise Conflict("the task is active")
        left = self.places.remove(body["project"], task)
        self.places.requests.gone(tenant, task["id"])
        self.places.discard(task)
        for note in left:
            logger.warning("not all of a task could be removed", task=task["id"], why=note)
        return {"left": left}

    def leave(self, body: Document) -> Document:
        """Another host needs the task's worktree. Raises Conflict if it must stay here, Unavailable."""
        return {"left": self.places.leave(body["project"], body["task"])}

    def lost(self, body: Document) -> list[str]:
        """Paths in the worktree that no snapshot can hold; empty where there is none."""
        worktree = self.places.here(body["project"], body["task"])
        if worktree is None:
            return []
        looked = snapshots.look(worktree)
        return [*looked.nested, *looked.ignored, *looked.left][:1000]

    def changes(self, body: Document) -> Document:
        """The contract's TaskChanges."""
        project, task, query = body["project"], body["task"], body["query"]
        base_ref, since = task["base_ref"], query.get("since")
        worktree = self.places.here(project, task)
        if worktree:
            tip = projects.default_tip(worktree.repo, project["default_branch"])
            if "snapshot" in query:
                return self._of_snapshot(worktree, body, tip).to_json()
            return changes.live(worktree, tip, base_ref, since).to_json()
        with self.places.rested(project, task) as (rest, _):
            tip = projects.default_tip(rest.repo, project["default_branch"])
            if "snapshot" in query:
                return self._of_snapshot(rest, body, tip).to_json()
            return resting.live(rest, tip, base_ref, since).to_json()

    def _of_snapshot(self, where: Worktree | Rested, body: Document, tip: str) -> TaskChanges:
        task, query = body["task"], body["query"]
        step = bool(query.get("step"))
        return changes.of_snapshot(where, task["id"], query["snapshot"], tip, task["base_ref"], step=step)

    def diff(self, body: Document) -> Document:
        """The contract's FileDiff."""
        worktree = self.places.here(body["project"], body["task"])
        if worktree:
            return self._diff(worktree, body)
        with self.places.rested(body["project"], body["task"]) as (rest, _):
            return self._diff(rest, body)

    def _diff(self, where: Worktree | Rested, body: Document) -> Document:
        task, query = body["task"], body["query"]
        made = diff.file_diff(
            where,
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
        worktree = self.places.here(project, task)
        if worktree:
            tip = projects.default_tip(worktree.repo, project["default_branch"])
            return dataclasses.asdict(changes.unmerged(worktree, tip, task["base_ref"]))
        with self.places.rested(project, task) as (rest, state):
            tip = projects.default_tip(rest.repo, project["default_branch"])
            return dataclasses.asdict(resting.unmerged(rest, state, tip, task["base_ref"]))

    def head(self, body: Document) -> str:
        """The commit that the worktree is on."""
        worktree = self.places.here(body["project"], body["task"])
        if worktree:
            return worktree.head().commit or ""
        with self.places.rested(body["project"], body["task"]) as (rest, _):
            return rest.head or ""
