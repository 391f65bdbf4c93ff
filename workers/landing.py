"""Bringing a task's work onto the default branch: the squash commit, the push, the user's checkout, what is left behind.

Rules: what stops it is one of `Moved` (the default branch has, so the agent must merge it in again), `Blocked` (a person must do
something, and the message says what), or an error that may pass (Unavailable). Each step may be taken again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from app.core.errors import ByreError, Conflict, Unavailable
from app.git import errors, forward, merge, publish, snapshots
from app.git.merge import Message, Person
from app.git.projects import Opened
from app.git.repo import Worktree
from app.git.run import BYRE
from app.services.turns import Turns
from app.services.writer import Clock
from app.store.keys import LogName
from workers.tasks import TaskWork

NOTES = "refs/notes/byre"
HELD_UP = ("dirty", "diverged", "busy", "elsewhere")
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Blocked(ByreError):
    """The merge can't go on; the message says what a person can do."""


class Moved(ByreError):
    """The default branch isn't where the agent has merged it in."""


class PullRequest(ByreError):
    """The branch is pushed, for people to merge it where they look at it; the message says where."""


class Landing:
    """The last steps of a merge, for tasks whose worktrees are here."""

    def __init__(self, work: TaskWork, turns: Turns, clock: Clock) -> None:
        self._work, self._turns, self._clock = work, turns, clock

    def squash(
        self, worktree: Worktree, project: Document, task: Document, tip: str, co_authors: Sequence[Document]
    ) -> str | None:
        """The squash commit on `tip`, None if there is nothing to merge. Raises Moved, Blocked."""
        branch = project["default_branch"]
        if not merge.contains(worktree, tip):
            if merge.contains(worktree, task["merge"]["target"]):
                raise Moved(f"{branch} has moved")
            left = merge.unsettled(worktree, tip, snapshots.look(worktree, ignored=False).tree)
            if left:
                raise Blocked(f"conflicts are left in {', '.join(left)}: settle them, or tell the agent how, and merge again")
            raise Blocked(f"the agent ended its turn without merging {branch} in: tell it to, and merge again")
        author = task["merge"]["author"]
        message = Message(
            title=task["merge_title"],
            author=Person(author["name"], author["email"]),
            when=task["merge"]["when"],
            co_authors=tuple(Person(user["git_name"], user["git_email"]) for user in co_authors),
        )
        try:
            return merge.squash(worktree, tip, message)
        except Conflict as error:
            raise Blocked(f"{error.message}; settle that, or tell the agent how, and merge again") from error

    def publish(self, worktree: Worktree, project: Document, found: Opened, task: Document, commit: str) -> None:
        """Puts the squash commit on the default branch: origin's, or the local one. Raises Moved, Blocked, PullRequest, Unavailable."""
        branch = project["default_branch"]
        target = found.push or found.origin
        if target is None:
            done = forward.fast_forward(found.repo, branch, commit)
            if done.outcome in HELD_UP:
                raise Blocked(f"the checkout is in the way: {done.advice}; or clean it up and merge again")
            return
        offers = self._work.repositories.settings(project).pull_requests
        try:
            with self._work.repositories.access(project, target) as access:
                if offers:
                    self._offer(worktree, project, found, task, access)
                publish.push(found.repo, target, access, commit, branch)
        except errors.Moved as error:
            raise Moved(error.message) from error
        except errors.Refused as error:
            raise Blocked(
                f"{error.message}. If {branch} is protected, have this project's tasks offered as pull requests "
                f"(`byre project pull-requests {project['name']} on --tenant {task['tenant']}`) and merge again"
            ) from error

    def _offer(self, worktree: Worktree, project: Document, found: Opened, task: Document, access: Any) -> None:
        """Pushes the task's own branch instead, and raises PullRequest."""
        head = worktree.head().commit
        tree = snapshots.look(worktree, ignored=False).tree
        if head is None or worktree.repo.run("rev-parse", f"{head}^{{tree}}").text != tree:
            raise Blocked("the agent has left work that it hasn't committed: tell it to commit all of it, and merge again")
        target = found.push or found.origin
        assert target
        try:
            publish.push(found.repo, target, access, head, task["branch"])
        except errors.Moved as error:
            raise Blocked(
                f"{task['branch']} on origin has commits that the task lacks: have the agent merge them in"
            ) from error
        link = publish.pull_request_url(found.origin or target, task["branch"], project["default_branch"])
        where = f"open a pull request at {link}" if link else f"open a pull request from {task['branch']}"
        raise PullRequest(
            f"The branch {task['branch']} is pushed: {where}. Once it is merged there, merge the task to close it."
        )

    def note(self, found: Opened, task: Document, lines: Sequence[str]) -> None:
        """Notes where the commit comes from, in the repository's own notes. What can't be noted holds nothing up."""
        commit, text = task["merge"]["commit"], "\n".join(lines) + "\n"
        try:
            found.repo.run(
                "notes", f"--ref={NOTES}", "add", "-f", "-F", "-", commit, input=text.encode(), environment=BYRE
            )  # fmt: skip
        except errors.GitError as error:
            logger.warning("a merge has no note of where it comes from", task=task["id"], why=error.message)

    def forward(self, found: Opened, project: Document, commit: str) -> str:
        """Takes the user's checkout along; what a person must do if that can't be, else "". Raises Unavailable."""
        done = forward.fast_forward(found.repo, project["default_branch"], commit)
        return done.advice if done.outcome in HELD_UP else ""

    def clean_up(self, tenant: str, project: Document, task: Document) -> None:
        """Removes the task's worktree, branch, refs and bundles. Raises Unavailable while somebody works there."""
        for record in self._turns.sessions(tenant, task["id"]):
            self._turns.log.coord.revoke(LogName(tenant, record["id"]).text, 0)
        places = self._work.places
        try:
            left = places.remove(project, task)
        except OSError as error:
            raise Unavailable(f"the task's worktree can't be removed: {error.strerror}") from error
        places.requests.gone(tenant, task["id"])
        places.discard(task)
        for why in left:
            logger.warning("not all of a task could be removed", task=task["id"], why=why)
