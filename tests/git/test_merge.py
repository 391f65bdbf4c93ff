"""Squash, push, fast-forward; chains of bundles; mirrors; many tasks at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from app.core.errors import Conflict, Corrupt
from app.git import bundles, changes, merge, mirrors, projects, rebuild, snapshots, worktrees
from app.git.credentials import access
from app.git.errors import MissingBase, Moved, Refused
from app.git.forward import fast_forward
from app.git.publish import push
from tests.git.lab import Lab, git, sh

WHO = merge.Person("Ada", "ada@example.com")
MESSAGE = merge.Message("Do it", WHO, 1_700_000_000, (merge.Person("Bo", "bo@example.com"), WHO))


def test_a_squash_is_pushed_and_the_checkout_follows(lab: Lab) -> None:
    worktree, branch = lab.task()
    (worktree.path / "new.txt").write_text("new\n")
    commit = merge.squash(worktree, lab.tip, MESSAGE)
    assert commit and commit == merge.squash(worktree, lab.tip, MESSAGE), "made again it is another"
    target = lab.opened.push
    assert target
    with access(lab.views.git, target) as allowed:
        push(lab.repo, target, allowed, commit, "main")
        push(lab.repo, target, allowed, commit, "main")
    assert git(lab.origin, "log", "--format=%H %an %s", "main").splitlines()[0] == f"{commit} Ada Do it"
    assert git(lab.origin, "log", "-1", "--format=%b", "main") == "Co-authored-by: Bo <bo@example.com>"
    assert merge.landed(lab.repo, commit, git(lab.work, "rev-parse", f"{commit}^"), MESSAGE) == commit
    assert fast_forward(lab.repo, "main", commit).outcome == "done"
    assert fast_forward(lab.repo, "main", commit).outcome == "already"
    assert (lab.work / "new.txt").exists() and git(lab.work, "status", "--porcelain") == ""
    worktrees.remove(worktree, branch)


def test_a_moved_branch_a_hook_a_dirty_checkout_and_markers_hold_a_merge_up(lab: Lab) -> None:
    worktree, _ = lab.task()
    (worktree.path / "a.txt").write_text("changed\n")
    tip = lab.tip
    commit = merge.squash(worktree, tip, MESSAGE)
    target = lab.opened.push
    assert commit and target
    hook = lab.origin / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho not on a Monday\nexit 1\n")
    hook.chmod(0o755)
    with access(lab.views.git, target) as allowed:
        with pytest.raises(Refused, match="not on a Monday"):
            push(lab.repo, target, allowed, commit, "main")
        hook.unlink()
        sh(
            lab.base,
            "git clone -q origin.git other; cd other; git commit -q --allow-empty -m moved; git push -q origin HEAD:main",
        )
        with pytest.raises(Moved):
            push(lab.repo, target, allowed, commit, "main")
        projects.fetch(lab.repo, target, allowed)
    with pytest.raises(Conflict, match="doesn't contain"):
        merge.squash(worktree, lab.tip, MESSAGE)
    (lab.work / "a.txt").write_text("the user's own\n")
    assert fast_forward(lab.repo, "main", commit).outcome == "dirty"
    assert (lab.work / "a.txt").read_text() == "the user's own\n" and git(lab.work, "rev-parse", "main") == tip
    (worktree.path / "a.txt").write_text("<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n")
    with pytest.raises(Conflict, match="conflicts are left in a"):
        merge.squash(worktree, tip, MESSAGE)


def test_a_chain_of_bundles_and_what_is_wrong_with_one(lab: Lab) -> None:
    worktree, branch = lab.task()
    parts, previous, tree = [], None, ""
    for n in (1, 2, 3):
        (worktree.path / f"{n}.txt").write_text(f"{n}\n" * 1000)
        taken = lab.take(worktree, n, tree)
        tree = taken.looked.tree
        file = lab.base / f"{n}.bundle"
        previous = bundles.create(worktree, taken, file, branch=branch, base=lab.tip, previous=previous)
        assert previous
        parts.append(rebuild.Part(previous, file, f"key-{n}"))
    assert bundles.create(worktree, taken, lab.base / "x", branch=branch, base=lab.tip, previous=previous) is None
    views, place = lab.views, lab.base / "mirror.git"
    mirror = mirrors.open_mirror(views, place)
    with pytest.raises(MissingBase):
        rebuild.objects(mirror, worktree.task, parts)
    assert lab.opened.origin
    with access(views.git, lab.opened.origin) as allowed:
        mirrors.refresh(mirror, lab.opened.origin, allowed)
    again = rebuild.rebuild(mirror, lab.base / "again", worktree.task, parts).worktree
    assert snapshots.look(again).tree == tree and len(worktrees.refs_of(mirror, worktree.task)) == 4
    damaged = parts[1].file.read_bytes()
    parts[1].file.write_bytes(damaged[:-30] + bytes([damaged[-30] ^ 1]) + damaged[-29:])
    with pytest.raises(Corrupt) as corrupt:
        rebuild.objects(mirror, worktree.task, parts)
    assert corrupt.value.key == "key-2"


def test_a_mirror_comes_back_from_its_bundle(lab: Lab) -> None:
    mirror = mirrors.open_mirror(lab.views, lab.base / "mirror.git")
    assert lab.opened.origin
    with access(lab.views.git, lab.opened.origin) as allowed:
        mirrors.refresh(mirror, lab.opened.origin, allowed)
    about = mirrors.save(mirror, lab.base / "m.bundle", None)
    assert about and mirrors.save(mirror, lab.base / "n.bundle", about) is None
    again = mirrors.restore(lab.views, lab.base / "again.git", [rebuild.Part(about, lab.base / "m.bundle")])
    mirrors.tidy(again)
    assert projects.default_tip(again, "main") == lab.tip


def test_tasks_made_snapshotted_and_discarded_at_once_leave_a_sound_repository(lab: Lab) -> None:
    base = changes.tree_of(lab.repo, lab.tip)

    def one(number: int) -> None:
        worktree, branch = lab.task(f"Task {number}")
        (worktree.path / f"{number}.txt").write_text("x\n")
        assert snapshots.take(worktree, 1, base).snapshot
        worktrees.remove(worktree, branch)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(50)))
    assert git(lab.work, "fsck", "--strict", "--no-dangling") == ""
    assert "byre" not in git(lab.work, "for-each-ref") and git(lab.work, "worktree", "list").count("\n") == 0
