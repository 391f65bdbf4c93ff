"""The budget of a worker's disk: what is at rest leaves it, whole, and comes back; what a bundle can't hold stays."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.services.tokens import Tokens
from app.store.open import open_store
from tests.git.board import Board, repository
from tests.git.lab import git, sh
from tests.support.client import until
from tests.support.deployment import TENANT, Deployment, deployment
from tests.support.dev import BYRE


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Board, Path]]:
    base = tmp_path_factory.mktemp("disk")
    _, work = repository(base / "repos")
    env = {"BYRE_DISK_BUDGET": "1", "BYRE_WARM_SECONDS": "0", "BYRE_REPO_ROOTS": str(base)}
    with deployment(workers=1, env=env) as it:
        store = open_store(it.store)
        _, token = Tokens(store, it.env["BYRE_SECRET_KEY"]).create(TENANT, "user", login="ann")
        store.close()
        yield it, Board(it.apis[0], token), work


def test_a_worktree_at_rest_leaves_and_comes_back_and_one_with_a_nested_repository_stays(
    it: tuple[Deployment, Board, Path],
) -> None:
    deployment_, user, work = it
    project = user.project(str(work))
    nested, task = user.task(project, "Nested"), user.task(project)
    user.turn(nested, "/run git init -q inner && cd inner && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x")
    session = user.turn(task, "/write one.txt 1\n/run git add one.txt && git commit -qm one && echo 2 > two.txt")
    place = Path(task["worktree_path"])
    until("the worktree has left", lambda: not place.exists(), seconds=60)
    assert (Path(nested["worktree_path"]) / "inner" / ".git").is_dir()
    shown = subprocess.run(
        [*BYRE, "project", "show", "p", "--tenant", TENANT], env=deployment_.env, capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in shown.stdout.splitlines() if line.startswith(task["id"])]
    assert lines[0][1] == "active" and int(lines[0][2]) > 4096 and int(lines[0][3]) > 100, shown
    changes = user.get(f"/tasks/{task['id']}/changes")
    assert [file["path"] for file in changes["files"]] == ["one.txt", "two.txt"]
    found = user.get(f"/tasks/{task['id']}/unmerged")
    assert (found["commits"], found["files"], found["uncommitted"]) == (1, 2, 1)
    user.say(session, "/run git log --format=%s | head -1 > log.txt; git status --porcelain >> log.txt; sleep 1; cat two.txt")
    until("it is back", lambda: (place / "log.txt").exists() and (place / "log.txt").read_text().count("\n") >= 3, seconds=60)
    user.idle(session)
    until("the worktree has left again", lambda: not place.exists(), seconds=60)
    assert user.changed(task) == ["log.txt", "one.txt", "two.txt"]
    lost = [user.post(f"/tasks/{each['id']}/discard") for each in (task, nested)]
    assert [each["status"] for each in lost] == ["discarded", "discarded"]
    gone = next(e for e in user.get(f"/tasks/{nested['id']}/events", limit=1000) if e["kind"] == "task.discarded")
    assert gone["payload"] == {"lost": ["inner"]}
    assert "byre/" not in git(work, "branch", "-a") and "refs/byre" not in git(work, "for-each-ref")


@pytest.mark.chaos
def test_fifty_tasks_made_worked_in_and_discarded_at_once_leave_a_sound_repository(it: tuple[Deployment, Board, Path]) -> None:
    deployment_, user, work = it
    project = user.project(str(work), "many")

    def one(number: int) -> None:
        task = user.task(project, f"Task {number}")
        (Path(task["worktree_path"]) / f"{number}.txt").write_text("x\n")
        assert user.changed(task) == [f"{number}.txt"]
        if number % 10 == 0:
            user.turn(task, f"/write agent-{number}.txt hi")
        assert user.post(f"/tasks/{task['id']}/discard")["status"] == "discarded"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(50)))
    assert git(work, "fsck", "--strict", "--no-dangling") == ""
    assert "byre" not in git(work, "for-each-ref") and git(work, "worktree", "list").count("\n") == 0
    assert not list((deployment_.data / "workspaces" / "tasks" / TENANT).iterdir())
    store = open_store(deployment_.store)
    tasks = store.list(f"tenants/{TENANT}/tasks/", limit=10_000)
    assert not [key for key in tasks if "/packs/" in key or "/bundles/" in key]


def test_what_a_crash_has_left_goes_and_work_without_a_record_stays(it: tuple[Deployment, Board, Path]) -> None:
    deployment_, user, work = it
    place = deployment_.data / "workspaces" / "tasks" / TENANT
    place.mkdir(parents=True, exist_ok=True)
    old = time.time() - 7200
    names = ["a" * 32, "b" * 32]
    for name in names:
        sh(work, f"git worktree add -q -b byre/left-{name[:8]} {place / name}")
    (place / names[1] / "work.txt").write_text("nobody knows whose\n")
    for name in names:
        os.utime(place / name, (old, old))
    task = user.task(user.project(str(work), "wakes the disk"))
    user.turn(task, "/say hello")
    until("the empty one is gone", lambda: not (place / names[0]).exists(), seconds=60)
    assert (place / names[1] / "work.txt").exists()
