"""Merging a task: what a person asks for. A worker does it (workers/merging.py), step by step, from what the task's record says.

The record's `merge` is there from the request until the task is merged or the merge has failed: whose it is, the session that brings the
default branch in, and how far it has come (`stage`): *waiting* for the project's other merges, *turn* while the agent merges the default
branch in, *landing* from the squash commit on, *landed* once it is on the default branch.

Rules: who asks is the author of the commit, so a git identity is needed before anything begins; people with a message in the task's
transcript are its co-authors.
"""

from __future__ import annotations

from typing import Any

from app.core.errors import Conflict, Invalid
from app.core.principal import Principal
from app.services.agents import Agents
from app.services.inbox import Inbox
from app.services.tasks import Tasks, happening
from app.services.turns import Said, Turns
from app.services.users import Users
from app.services.writer import Clock

PERSON = ("login", "display_name", "git_name", "git_email")
Document = dict[str, Any]
Documents = list[Document]


class Merging:
    """Merge, merge-in, who is named in the commit, and the end without one."""

    def __init__(self, tasks: Tasks, agents: Agents, turns: Turns, users: Users, inbox: Inbox, clock: Clock) -> None:
        self._tasks, self._agents, self._turns = tasks, agents, turns
        self._users, self._inbox, self._clock = users, inbox, clock

    def co_authors(self, principal: Principal, task_id: str) -> Documents:
        """The contract's Participants: everybody else with a message in the task's transcript, in that order. Raises Missing."""
        task = self._tasks.record(principal.tenant, task_id)
        others = [login for login in task.get("participants", []) if login != principal.login]
        found = [self._users.get(principal.tenant, login) for login in others]
        return [{name: user[name] for name in PERSON} for user in found]

    def merge_in(self, principal: Principal, task_id: str) -> Document:
        """Starts a turn that merges the default branch into the task's. Raises Missing, Conflict, Unavailable."""
        tenant = principal.tenant
        self._tasks.active(tenant, task_id)
        with self._turns.starting(tenant, task_id):
            task = self._agents.check_idle(tenant, task_id)
            target = self._tasks.merge_target(tenant, task)
            record = self._session(principal, task)
            self._turns.say(tenant, task, record["id"], merge_message(target))
            self._agents.supersede_blocking(tenant, record, "message")
        return self._agents.shown(tenant, record, task)

    def merge(self, principal: Principal, task_id: str) -> Document:
        """Starts the merge. Raises Invalid without a git identity, Missing, Conflict, Unavailable."""
        tenant, login = principal.tenant, principal.login or ""
        self._tasks.active(tenant, task_id)
        user = self._users.get(tenant, login)
        if not user["git_name"] or not user["git_email"]:
            raise Invalid("set your git identity first (git_name and git_email): the commit is authored by you")
        with self._turns.starting(tenant, task_id):
            task = self._agents.check_idle(tenant, task_id)
            record = self._session(principal, task)
            now, text = self._clock.now(), self._clock.text()
            merge = {
                "id": self._clock.id(),
                "login": login,
                "author": {"name": user["git_name"], "email": user["git_email"]},
                "when": int(now),
                "session": record["id"],
                "stage": "waiting",
                "attempt": 0,
                "tries": 0,
            }

            def begin(doc: Document) -> tuple[Document, list[Any]]:
                if doc["status"] != "active" or doc.get("merge"):
                    raise Conflict("the task is being merged or is closed")
                started = happening(doc, "merge.started", text, login, {"login": login}, record["id"])
                return {**doc, "merge": merge}, [started]

            self._turns.owe(tenant, task_id)
            task = self._tasks.change(tenant, task_id, begin)
            self._agents.supersede_blocking(tenant, record, "message")
            errors = self._inbox.open_of_task(tenant, task_id, lambda item: item["kind"] == "session_error")
            self._inbox.supersede(tenant, errors, "merge")
        self._turns.poke(tenant, task_id)
        return self._agents.shown(tenant, record, task)

    def discard(self, principal: Principal, task_id: str) -> Document:
        """Throws the task away, and what it has in the inbox. Raises Missing, Conflict while a turn runs or waits."""
        tenant = principal.tenant
        self._tasks.active(tenant, task_id)
        with self._turns.starting(tenant, task_id):
            self._turns.owe(tenant, task_id)
            discarded = self._tasks.discard(principal, task_id)
            self._inbox.supersede(tenant, self._inbox.open_of_task(tenant, task_id), "discarded")
        return discarded

    def _session(self, principal: Principal, task: Document) -> Document:
        """The task's latest session that goes on, or a new one."""
        going_on = [record for record in self._turns.sessions(principal.tenant, task["id"]) if not record["completed"]]
        if going_on:
            return going_on[-1]
        return self._turns.open(principal.tenant, task, principal.login or "", "", self._clock.id())


def merge_message(target: Document, key: str | None = None) -> Said:
    """What an agent is told to bring the default branch in; `target` has `head` (the worktree's), `ref` and `branch`."""
    return Said(
        f"Merge {target['branch']} into this task's branch.", target["head"], "byre", purpose="merge_in",
        merge_ref=target["ref"], key=key,
    )  # fmt: skip
