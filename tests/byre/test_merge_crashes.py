"""The worker is killed at every point of a merge: exactly one commit, no force, and the task is merged in the end."""

from __future__ import annotations

import fcntl
import signal
from pathlib import Path

import pytest

from tests.support.client import until
from tests.support.deployment import Worker
from tests.support.people import People, Project, git


def killed(people: People) -> None:
    """The worker dies without a word; another one starts."""
    worker = people.it.workers[0]
    worker.end(signal.SIGKILL)
    worker.start()


def check(project: Project, people: People, task: str) -> None:
    merged = people.merged(task)
    assert project.log("%H|%s") == [
        f"{merged['merge_commit']}|Killed",
        f"{git(project.work, 'rev-list', '--max-parents=0', 'main')}|first",
    ]
    assert git(project.work, "rev-parse", "main") == merged["merge_commit"]
    assert git(project.work, "status", "--porcelain", "--untracked-files=no") == ""
    assert not Path(merged["worktree_path"]).exists() and merged["branch"] not in git(project.work, "branch", "-a")
    assert len(people.events(task, "task.merged")) == 1 and len(people.events(task, "merge.started")) == 1
    assert not people.inbox(task) and people.state(people.sessions(task)[0]["id"]) == "idle"
    assert git(project.truth, "reflog", "show", "main", ok=False).count("forced") == 0


def started(people: People, prompt: str = "/write b.txt b") -> tuple[Project, str]:
    project = people.project()
    task = project.task("Killed")
    people.work(task, prompt)
    return project, task


@pytest.mark.parametrize("point", ["pre-receive", "post-receive"])
def test_killed_while_it_pushes(people: People, point: str) -> None:
    """After the squash, before origin has it; and after origin has it, before anybody was told."""
    project, task = started(people)
    mark = project.base / "reached"
    hook = project.hook(point, f"touch {mark}; sleep 600")
    assert people.merge(task).status == 202
    until("the push is under way", mark.exists, seconds=60)
    on_main = len(project.log())
    hook.write_text("#!/bin/sh\n")
    killed(people)
    assert on_main == (1 if point == "pre-receive" else 2)
    check(project, people, task)


def test_killed_before_it_has_cleaned_up(people: People) -> None:
    project, task = started(people)
    lock = people.it.data / "workspaces" / "git" / "used" / task
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as long as somebody uses the worktree it isn't removed
        assert people.merge(task).status == 202
        until("it is on main", lambda: len(project.log()) == 2, seconds=60)
        until("the checkout has it", lambda: (project.work / "b.txt").exists(), seconds=60)
        killed(people)
        assert people.task(task)["status"] == "active"
    check(project, people, task)


def test_killed_while_the_agent_merges_in(people: People) -> None:
    """The turn is lost with its worker; the merge has it done again."""
    project, task = started(people, "/write b.txt b\n/run git config core.hooksPath hooks")
    project.push("a.txt", "moved\n")
    tree = Path(people.task(task)["worktree_path"])
    slow = tree / ".gitattributes"
    slow.write_text("a.txt merge=slow\n")
    git(tree, "config", "merge.slow.driver", f"touch {project.base}/merging; sleep 600")
    (tree / "a.txt").write_text("ours\n")
    assert people.merge(task).status == 202
    until("the agent merges", (project.base / "merging").exists, seconds=60)
    git(tree, "config", "--unset", "merge.slow.driver")
    git(project.work, "config", "--unset", "core.hooksPath")
    killed(people)
    people.merged(task)
    assert project.log() == ["Killed", "elsewhere", "first"]
    assert len([e for e in people.events(task, "turn.started") if e["payload"].get("purpose") == "merge_in"]) == 2


@pytest.mark.chaos
def test_another_host_merges_when_the_first_is_gone(people: People) -> None:
    """The worktree was on the disk of a worker that doesn't come back: it is made again from its bundles, and merged."""
    project, task = started(people)
    it = people.it
    first = it.workers[0]
    first.end(signal.SIGKILL)
    other = Worker({**it.env, "BYRE_WORKSPACES": str(it.data / "other-disk")}, it.data / "worker-other.log")
    it.workers[0] = other
    other.start()
    try:
        until("the merge is asked for", lambda: people.merge(task).status == 202, seconds=90, pause=1)
        merged = people.merged(task)
        assert project.log() == ["Killed", "first"] and git(project.work, "rev-parse", "main") == merged["merge_commit"]
    finally:
        other.end()
        it.workers[0] = first
        first.start()
