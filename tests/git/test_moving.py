"""A task goes on when the worker and disk that had its worktree are gone: another host makes it again from the store."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.services.tokens import Tokens
from app.store.open import open_store
from tests.git.board import Board, repository
from tests.git.lab import git
from tests.support.client import until
from tests.support.deployment import TENANT, Deployment, Worker, deployment

AWKWARD = "\n".join(
    [
        "/run git mv a.txt 'neu ü.txt' && git commit -qm moved",
        "/run printf 'staged\\n' > staged.txt && git add staged.txt && printf 'more\\n' >> staged.txt",
        "/run ln -s README.md link && printf 'x' > \"$(printf 'latin-\\351')\" && mkdir -p ignored && echo i > ignored/i",
        "/run git checkout -q -b side HEAD~1 && echo theirs > README.md && git commit -qam theirs && git checkout -q -",
        "/run echo ours > README.md && git commit -qam ours && git merge side || true",
    ]
)


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Deployment]:
    env = {"BYRE_LEASE_SECONDS": "3", "BYRE_WARM_SECONDS": "1", "BYRE_SWEEP_SECONDS": "0.5", "BYRE_WORKER_SLOTS": "1"}
    with deployment(workers=1, env={**env, "BYRE_REPO_ROOTS": str(tmp_path)}) as it:
        yield it


def board(it: Deployment) -> Board:
    store = open_store(it.store)
    _, token = Tokens(store, it.env["BYRE_SECRET_KEY"]).create(TENANT, "user", login="ann")
    store.close()
    return Board(it.apis[0], token)


def other_worker(it: Deployment, workspaces: Path) -> Worker:
    """A worker with a disk of its own."""
    worker = Worker({**it.env, "BYRE_WORKSPACES": str(workspaces)}, it.data / "other.log")
    it.workers.append(worker)
    worker.start()
    return worker


def lose(folder: Path) -> None:
    """Removes what a killed worker has left, while its guardian may still be clearing up there."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until("the folder is gone", gone)


def seen(where: Path) -> dict[str, str]:
    return {
        "head": git(where, "rev-parse", "HEAD"),
        "branch": git(where, "symbolic-ref", "HEAD"),
        "status": git(where, "-c", "status.renames=false", "status", "--porcelain=v2", "-z", "-uall"),
        "index": git(where, "ls-files", "--stage", "-z"),
        "merge": git(where, "rev-parse", "MERGE_HEAD"),
    }


@pytest.mark.parametrize("kind", ["directory", pytest.param("url", marks=pytest.mark.chaos)])
def test_another_host_makes_the_worktree_again_in_the_same_state(it: Deployment, tmp_path: Path, kind: str) -> None:
    origin, work = repository(tmp_path / "repos")
    user = board(it)
    project = user.project(str(work) if kind == "directory" else f"file://{origin}")
    task = user.task(project)
    session = user.turn(task, AWKWARD)
    before, tree = seen(Path(task["worktree_path"])), user.get(f"/tasks/{task['id']}/changes")
    unmerged = user.get(f"/tasks/{task['id']}/unmerged")
    assert it.workers[0].end(signal.SIGKILL) == -signal.SIGKILL
    lose(it.data / "workspaces")
    if kind == "directory":
        git(work, "worktree", "prune")
    it.redis.stop()
    it.redis.start()
    other_worker(it, it.data / "elsewhere")
    assert user.get(f"/tasks/{task['id']}/changes") == tree, "answered from the store"
    assert user.get(f"/tasks/{task['id']}/unmerged") == unmerged
    query = {"base": tree["base"], "tree": tree["tree"], "path": "staged.txt"}
    assert "+more" in user.get(f"/tasks/{task['id']}/diff", **query)["patch"]
    last = user.get(f"/tasks/{task['id']}/snapshots")[-1]
    assert last["tree_sha"] == tree["tree"] and user.changed(task, snapshot=last["n"], step="true")
    user.say(session, "/run git status > ignored-by-nobody.txt")
    user.idle(session)
    place = it.data / "elsewhere" / "tasks" / TENANT / task["id"]
    (place / "ignored-by-nobody.txt").unlink()
    assert seen(place) == before
    assert git(place, "fsck", "--strict", "--no-dangling") == ""
    assert user.get(f"/tasks/{task['id']}/snapshots")[-1]["n"] == last["n"] + 1
    user.post(f"/tasks/{task['id']}/discard")
    assert not place.exists() and task["branch"] not in git(work, "branch", "-a")
    left = open_store(it.store).list(f"tenants/{TENANT}/tasks/{task['id']}/")
    assert not [key for key in left if "/packs/" in key or "/bundles/" in key]


def test_a_worker_that_dies_with_its_disk_in_mid_turn_loses_what_came_after_the_last_snapshot(
    it: Deployment, tmp_path: Path
) -> None:
    _, work = repository(tmp_path / "repos")
    user = board(it)
    task = user.task(user.project(str(work)))
    session = user.session(task, "/write one.txt 1\n/write two.txt 2\n/sleep 1\n/write three.txt 3\n/sleep 600")

    def told() -> bool:
        found = user.get(f"/tasks/{task['id']}/snapshots")
        return bool(found) and "three.txt" in user.changed(task, snapshot=found[-1]["n"])

    until("the third file is in a snapshot", told, seconds=60)
    (Path(task["worktree_path"]) / "unseen.txt").write_text("after the last snapshot\n")
    it.workers[0].end(signal.SIGKILL)
    lose(it.data / "workspaces")
    other_worker(it, it.data / "elsewhere")
    user.idle(session)
    assert user.changed(task) == ["one.txt", "three.txt", "two.txt"]
    user.say(session, "/run ls")
    user.idle(session)
    assert user.changed(task) == ["one.txt", "three.txt", "two.txt"]
    assert (it.data / "elsewhere" / "tasks" / TENANT / task["id"] / "three.txt").exists()


@pytest.mark.chaos
def test_a_living_holder_is_asked_to_leave_and_gives_all_it_has(it: Deployment, tmp_path: Path) -> None:
    _, work = repository(tmp_path / "repos")
    user = board(it)
    project = user.project(str(work))
    task, blocker = user.task(project), user.task(project, "Blocks the only slot")
    session = user.turn(task, "/write one.txt 1")
    (Path(task["worktree_path"]) / "by-hand.txt").write_text("a person's\n")
    busy = user.session(blocker, "/sleep 600")
    until("it runs", lambda: user.get(f"/sessions/{busy['id']}")["state"] == "running", seconds=60)
    other_worker(it, it.data / "elsewhere")
    user.say(session, "/run cat one.txt by-hand.txt > both.txt")
    user.idle(session)
    place = it.data / "elsewhere" / "tasks" / TENANT / task["id"]
    assert (place / "both.txt").read_text() == "1a person's\n"
    assert not Path(task["worktree_path"]).exists()
    assert user.changed(task) == ["both.txt", "by-hand.txt", "one.txt"]


@pytest.mark.chaos
def test_a_turn_waits_for_the_host_whose_worktree_can_t_leave(it: Deployment, tmp_path: Path) -> None:
    _, work = repository(tmp_path / "repos")
    user = board(it)
    project = user.project(str(work))
    task, blocker = user.task(project), user.task(project, "Blocks the only slot")
    session = user.turn(
        task, "/run git init -q inner && git -C inner -c user.name=a -c user.email=a@b commit -qm x --allow-empty"
    )
    busy = user.session(blocker, "/sleep 8")
    until("it runs", lambda: user.get(f"/sessions/{busy['id']}")["state"] == "running", seconds=60)
    other_worker(it, it.data / "elsewhere")
    user.say(session, "/run echo 1 > one.txt")
    user.idle(session)
    assert (Path(task["worktree_path"]) / "one.txt").exists() and (Path(task["worktree_path"]) / "inner" / ".git").exists()
    assert not (it.data / "elsewhere" / "tasks" / TENANT / task["id"]).exists()


@pytest.mark.chaos
def test_what_somebody_deletes_by_hand_comes_back(it: Deployment, tmp_path: Path) -> None:
    _, work = repository(tmp_path / "repos")
    user = board(it)
    task = user.task(user.project(str(work)))
    session = user.turn(task, "/run echo 1 > a.txt && git commit -qam one && echo 2 > b.txt")
    place = Path(task["worktree_path"])
    head, changes = git(place, "rev-parse", "HEAD"), user.get(f"/tasks/{task['id']}/changes")
    shutil.rmtree(place)
    assert user.get(f"/tasks/{task['id']}/changes") == changes
    user.say(session, "/run cat a.txt b.txt > c.txt")
    user.idle(session)
    assert (place / "c.txt").read_text() == "1\n2\n" and git(place, "rev-parse", "HEAD") == head
    until("no agent is kept", lambda: user.get(f"/sessions/{session['id']}")["state"] == "idle", seconds=30)
    git(work, "update-ref", "-d", f"refs/heads/{task['branch']}")
    user.say(session, "/run git log --format=%s | head -1 > d.txt")
    user.idle(session)
    user.say(session, "/say once more")
    user.idle(session)
    assert git(work, "rev-parse", task["branch"]) == head
    assert (place / "c.txt").exists()
    shutil.rmtree(work / ".git" / "worktrees" / task["id"])
    assert "c.txt" in user.changed(task)
    user.say(session, "/run git status --porcelain > e.txt")
    user.idle(session)
    assert "c.txt" in (place / "e.txt").read_text()
