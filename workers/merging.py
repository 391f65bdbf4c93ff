"""Merging a task, step by step: each step is noted in the task's record before the next one begins.

*waiting* -> *turn* -> *landing* -> *landed*, as `app/services/merging.py` names them; *failing* on the way out. The squash commit is noted
before it is pushed, so whether it is on the default branch is asked of git, whatever was lost.

Rules: merges of a project run one at a time, in the order in which they were asked for; never by force: if the default branch has moved the
agent merges it in again, a bounded number of times; a merge that can't go on leaves an inbox item that says what a person can do.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import structlog

from app.core.errors import ByreError, Conflict, Invalid, TooLarge, Unavailable
from app.git import projects
from app.git.changes import is_ancestor
from app.git.projects import Opened
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.merging import merge_message
from app.services.tasks import happening
from app.services.turns import LOOK_MS, Turns
from app.services.users import Users
from app.services.writer import Clock
from app.store import keys
from workers.landing import Blocked, Landing, Moved, PullRequest
from workers.merge_queue import MergeQueue
from workers.tasks import TaskWork

MOST_TURNS = 5
"""How often the agent merges the default branch in for one merge."""
MOST_TRIES = 6
"""How often a step is tried whose failure may pass."""
RETRY_MS = 5_000
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Target(NamedTuple):
    """The default branch, just fetched: its name, a ref for the agent, its commit, and the worktree's commit."""

    branch: str
    ref: str
    tip: str
    head: str


class Merger:
    """The merges of all tasks whose worktrees are here."""

    def __init__(
        self,
        work: TaskWork,
        entities: Entities,
        inbox: Inbox,
        turns: Turns,
        users: Users,
        landing: Landing,
        clock: Clock,
    ) -> None:
        self._work, self._entities, self._inbox, self._turns = work, entities, inbox, turns
        self._users, self._landing, self._clock = users, landing, clock
        self._queue = MergeQueue(entities)

    def advance(self, tenant: str, task: Document) -> int:
        """Takes one step of the task's merge, which no turn holds up; gives the milliseconds until the next one. Raises ByreError."""
        merge = task["merge"]
        project = {
            **self._entities.get(tenant, keys.project(tenant, task["project_id"]), "project"),
            "tenant": tenant,
        }
        task = {**task, "tenant": tenant}
        try:
            match merge["stage"]:
                case "waiting":
                    return self._begin(tenant, project, task)
                case "turn":
                    return self._again(tenant, task)
                case "landing":
                    self._land(tenant, project, task)
                case "landed":
                    self._finish(tenant, project, task)
                case "failing":
                    self._fail(tenant, task, merge["why"], merge.get("item"))
        except (Blocked, Invalid, Conflict, TooLarge) as error:
            if merge["stage"] == "landed":
                raise Unavailable(error.message) from error  # it is merged: only the rest can't be done yet
            self._fail(tenant, task, error.message)
        except Unavailable as error:
            return self._retry(tenant, task, error)
        return 0

    def target(self, body: Document) -> Document:
        """Serves the request `task.target`: what an agent is to merge in. Raises Unavailable, Invalid."""
        project, task = body["project"], body["task"]
        found = self._work.opened(project)
        self._work.repositories.refresh(project, found)
        target = self._target(project, task, found)
        return {"branch": target.branch, "ref": target.ref, "head": target.head}

    def _target(self, project: Document, task: Document, found: Opened) -> Target:
        branch = project["default_branch"]
        # a mirror has origin's branches as its own
        ref = f"origin/{branch}" if found.repo.tip(f"refs/remotes/origin/{branch}") else branch
        head = self._work.head({"project": project, "task": task})
        return Target(branch, ref, projects.default_tip(found.repo, branch), head)

    def _begin(self, tenant: str, project: Document, task: Document) -> int:
        """When it is this merge's turn among the project's: has the agent merge the default branch in."""
        merge = task["merge"]
        if not self._queue.first(tenant, task):
            return LOOK_MS
        if merge["attempt"] >= MOST_TURNS:
            raise Blocked(
                f"{project['default_branch']} moved, or the agent was lost, {MOST_TURNS} times during the merge: merge again"
            )
        found = self._work.opened(project)
        self._fetch(project, found)
        target = self._target(project, task, found)
        key = f"merge:{merge['id']}:{merge['attempt'] + 1}"
        said = {"branch": target.branch, "ref": target.ref, "head": target.head, "key": key}
        new = {"stage": "turn", "attempt": merge["attempt"] + 1, "tries": 0, "target": target.tip, "said": said}
        task = self._change(tenant, task, new, was="waiting")
        self._turns.say(tenant, task, merge["session"], merge_message(said, key))
        return LOOK_MS

    def _again(self, tenant: str, task: Document) -> int:
        """Nothing runs, so the agent wasn't told, or isn't yet seen to run: said again under its key it is said once."""
        merge = task["merge"]
        self._count(tenant, task)
        said = merge["said"]
        self._turns.say(tenant, task, merge["session"], merge_message(said, said["key"]))
        return LOOK_MS

    def _land(self, tenant: str, project: Document, task: Document) -> None:
        found = self._work.opened(project)
        self._fetch(project, found)
        tip = projects.default_tip(found.repo, project["default_branch"])
        merge = task["merge"]
        commit = next((c for c in merge.get("commits", ()) if found.repo.exists(c) and is_ancestor(found.repo, c, tip)), None)
        if commit is None:
            with self._work.places.used(task):
                worktree, _ = self._work.places.enter(project, task)
                try:
                    commit = self._landing.squash(worktree, project, task, tip, self._co_authors(tenant, task))
                    if commit:
                        # noted before anybody can see it
                        commits = [*merge.get("commits", ()), commit]
                        task = self._change(tenant, task, {"commits": list(dict.fromkeys(commits))}, was="landing")
                        self._landing.publish(worktree, project, found, task, commit)
                except Moved:
                    self._change(tenant, task, {"stage": "waiting"}, was="landing")
                    return
                except PullRequest as made:
                    self._offered(tenant, task, made)
                    return
        self._change(tenant, task, {"stage": "landed", "commit": commit, "tries": 0}, was="landing")

    def _co_authors(self, tenant: str, task: Document) -> list[Document]:
        others = [login for login in task.get("participants", []) if login != task["merge"]["login"]]
        return [user for user in (self._users.get(tenant, login) for login in others) if user["git_email"]]

    def _finish(self, tenant: str, project: Document, task: Document) -> None:
        """It is on the default branch: brings the user's checkout along, cleans up, and says so."""
        merge, commit = task["merge"], task["merge"]["commit"]
        advice = self._bring_along(tenant, project, task) if commit else ""
        record = self._entities.get(tenant, keys.task_session(tenant, task["id"], merge["session"]), "session")
        wrong = _derived(merge["id"], "checkout")
        if advice:
            text = f"the task is merged as {commit[:12]}, but the checkout of {project['name']} was left as it is: {advice}"
            self._inbox.create(tenant, record, "session_error", {"error": text, "checkout": True}, wrong)
        pointless = self._inbox.open_of_task(tenant, task["id"], lambda item: item["id"] != wrong)
        self._inbox.supersede(tenant, pointless, "merged")
        self._landing.clean_up(tenant, project, task)
        now = self._clock.text()
        happened = [
            happening(
                task, "task.merged", now, merge["login"], {"merge_commit": commit or "", "merge_title": task["merge_title"]}
            ),
            happening(task, "session.state", now, "byre", {"state": "idle"}, merge["session"]),
        ]

        def merged(doc: Document) -> tuple[Document, list[Any]] | None:
            if doc["status"] != "active":
                return None
            left = {name: value for name, value in doc.items() if name != "merge"}
            return {**left, "status": "merged", "closed_at": now, "merge_commit": commit or ""}, happened

        self._entities.change(tenant, keys.task(tenant, task["id"]), merged)
        self._next(tenant, task)

    def _bring_along(self, tenant: str, project: Document, task: Document) -> str:
        """Notes where the commit comes from, and takes the user's checkout to it; what a person must do if that can't be."""
        try:
            found = self._work.opened(project)
            self._landing.note(found, task, self._provenance(tenant, task))
            return self._landing.forward(found, project, task["merge"]["commit"])
        except Invalid as error:
            return error.message

    def _provenance(self, tenant: str, task: Document) -> list[str]:
        """Lines that say where the commit comes from."""
        sessions = self._turns.sessions(tenant, task["id"])
        snapshots = self._entities.listed(keys.snapshots_prefix(tenant, task["id"]))
        last = self._entities.many(tenant, snapshots[-1:])
        items = self._inbox.of_task(tenant, task["id"])
        given = [(item, response) for item in items for response in item["responses"] if response["type"] != "dismiss"]
        return [
            f"Byre-Task: {task['id']} {task['title']}",
            f"Byre-Base: {task['base_ref']}",
            *(f"Byre-Session: {session['id']} {session['vendor']} {session['model']}".rstrip() for session in sessions),
            *(f"Byre-Snapshots: {len(snapshots)}, the last {record['commit_sha']}" for record in last),
            *(f"Byre-Answer: {item['id']} {response['user']}" for item, response in given),
        ]

    def _offered(self, tenant: str, task: Document, made: PullRequest) -> None:
        record = self._entities.get(tenant, keys.task_session(tenant, task["id"], task["merge"]["session"]), "session")
        self._inbox.create(tenant, record, "report", {"text": made.message}, _derived(task["merge"]["id"], "pull-request"))
        self._end(tenant, task, [])

    def _fail(self, tenant: str, task: Document, why: str, item: str | None = None) -> None:
        """Ends the merge without one; the task stays active, with an item that says why, unless somebody interrupted it."""
        merge = task["merge"]
        record = self._entities.get(tenant, keys.task_session(tenant, task["id"], merge["session"]), "session")
        if item is None and merge["stage"] != "failing":
            item = _derived(merge["id"], "failed")
            self._inbox.create(tenant, record, "session_error", {"error": f"not merged: {why}"}, item)
        payload = {"reason": why, **({"item_id": item} if item else {})}
        self._end(tenant, task, [happening(task, "merge.failed", self._clock.text(), "byre", payload, merge["session"])])

    def _end(self, tenant: str, task: Document, happened: list[Any]) -> None:
        merge = task["merge"]
        idle = happening(task, "session.state", self._clock.text(), "byre", {"state": "idle"}, merge["session"])

        def ended(doc: Document) -> tuple[Document, list[Any]] | None:
            if doc.get("merge", {}).get("id") != merge["id"]:
                return None
            return {name: value for name, value in doc.items() if name != "merge"}, [*happened, idle]

        self._entities.change(tenant, keys.task(tenant, task["id"]), ended)
        self._next(tenant, task)

    def _next(self, tenant: str, task: Document) -> None:
        for other in self._queue.leave(tenant, task):
            self._turns.poke(tenant, other)

    def _fetch(self, project: Document, found: Opened) -> None:
        notes = self._work.repositories.refresh(project, found)
        if notes:
            raise Unavailable(notes[0])

    def _retry(self, tenant: str, task: Document, error: ByreError) -> int:
        logger.info("a merge is held up", task=task["id"], why=error.message)
        if task["merge"]["stage"] == "landed":
            return RETRY_MS
        if task["merge"]["tries"] + 1 >= MOST_TRIES:
            self._fail(tenant, task, f"{error.message}: merge again when that is mended")
            return 0
        self._count(tenant, task)
        return RETRY_MS

    def _count(self, tenant: str, task: Document) -> None:
        if task["merge"]["tries"] >= MOST_TRIES:
            raise Blocked("the agent's turn does not begin: merge again")
        self._change(tenant, task, {"tries": task["merge"]["tries"] + 1}, was=task["merge"]["stage"])

    def _change(self, tenant: str, task: Document, fields: Document, *, was: str) -> Document:
        merge = task["merge"]

        def changed(doc: Document) -> tuple[Document, tuple[()]]:
            now = doc.get("merge", {})
            if now.get("id") != merge["id"] or now["stage"] != was:
                raise Overtaken("the merge has gone on meanwhile")
            return {**doc, "merge": {**now, **fields}}, ()

        return {**self._entities.change(tenant, keys.task(tenant, task["id"]), changed), "tenant": tenant}


class Overtaken(Unavailable):
    """Somebody else has changed the merge: look again."""


def _derived(merge: str, what: str) -> str:
    return hashlib.sha256(f"{merge} {what}".encode()).hexdigest()[:32]
