"""Random work: our snapshots, changes, diffs and rebuilt worktrees against git's own answers."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from app.git import bundles, changes, diff, paths, projects, rebuild, resting, worktrees
from app.git.repo import Worktree
from app.git.snapshots import Taken
from app.git.vault import Vault
from app.store import keys
from app.store.memory import MemoryStore
from tests.git import lab as labs
from tests.git import work
from tests.git.lab import Lab, git, git_bytes


def staged_by_git(top: Path, index: Path) -> str:
    """The tree that git makes when it stages everything, in an index of its own."""
    own = Path(git(top, "rev-parse", "--absolute-git-dir")) / "index"
    if own.exists():
        shutil.copy2(own, index)
    env = {"GIT_INDEX_FILE": str(index)}
    skipped = [entry[2:] for entry in git_bytes(top, "ls-files", "-t", "-z", env=env).split(b"\0") if entry[:1] == b"S"]
    if skipped:  # Work in such files is in our snapshots, although git would leave it out.
        git_bytes(top, "update-index", "--no-skip-worktree", "-z", "--stdin", env=env, data=b"\0".join(skipped) + b"\0")
    git(top, "add", "-A", env=env)
    return git(top, "write-tree", env=env)


def seen_by_git(top: Path) -> dict[str, bytes]:
    """All that a user sees of a worktree's state."""
    return {
        "head": git_bytes(top, "rev-parse", "HEAD"),
        "branch": git_bytes(top, "symbolic-ref", "-q", "HEAD", ok=False),
        "status": git_bytes(top, "-c", "status.renames=false", "status", "--porcelain=v2", "-z", "-uall"),
        "index": git_bytes(top, "ls-files", "--stage", "-v", "-z"),
        "words": git_bytes(top, "-c", "core.quotePath=true", "status", "-uno"),
        "stash": b"\n".join(
            line for line in git_bytes(top, "stash", "list", "--format=%H %s").split(b"\n") if b" byre/" in line
        ),
    }


def check_changes(worktree: Worktree, base: str, tree: str) -> None:
    top = worktree.path
    files = changes.between(worktree, base, tree)
    raw = git_bytes(top, "diff-tree", "-r", "-z", "-M", "--name-status", base, tree).split(b"\0")
    counts = git_bytes(top, "diff-tree", "-r", "-z", "-M", "--numstat", base, tree).split(b"\0")
    letters = {"added": b"A", "modified": b"M", "deleted": b"D", "renamed": b"R", "type_changed": b"T"}
    ours_names: list[bytes] = []
    ours_counts: list[bytes] = []
    for file in files:
        count = b"-\t-" if file.binary else f"{file.additions}\t{file.deletions}".encode()
        path = paths.parse(file.path)
        if file.old_path is not None:
            old = paths.parse(file.old_path)
            ours_names += [b"R", old, path]
            ours_counts += [count + b"\t", old, path]
        else:
            ours_names += [letters[file.status], path]
            ours_counts += [count + b"\t" + path]
    assert [b"R" if name[:1] == b"R" and name[1:].isdigit() else name for name in raw[:-1]] == ours_names
    assert counts[:-1] == ours_counts
    for file in files[:6]:
        old_name = [paths.parse(file.old_path)] if file.old_path is not None else []
        literal = [b":(top,literal)" + name for name in [paths.parse(file.path), *old_name]]
        less = [b":(top,exclude,literal)" + name + b"/" for name in [paths.parse(file.path), *old_name]]
        renames = "-M" if old_name else "--no-renames"
        wanted = git_bytes(top, "diff-tree", "-r", "-p", "--full-index", renames, base, tree, "--", *literal, *less)
        made = diff.file_diff(worktree, worktree.task, base, tree, file.path, file.old_path, base_ref=base)
        assert made.patch.encode() == wanted.decode("utf-8", "replace").encode() and not made.cut


def undetached(words: bytes) -> bytes:
    """What git says of a detached HEAD comes from the reflog, which doesn't travel."""
    return re.sub(rb"HEAD detached (?:at|from) [^\n]+|Not currently on any branch\.", b"detached", words)


def check_rebuilt(lab: Lab, worktree: Worktree, branch: str, taken: Taken, base: str) -> None:
    with tempfile.TemporaryDirectory(dir=lab.base) as away:
        file = Path(away) / "one.bundle"
        manifest = bundles.create(worktree, taken, file, branch=branch, base=base, previous=None)
        assert manifest
        git(Path(away), "clone", "-q", str(lab.origin), "work")
        views = labs.worker_views(Path(away) / "private", lab.base)
        there = projects.open_directory(views, str(Path(away) / "work"), [lab.base]).repo
        place = Path(away) / "worktrees" / worktree.task
        again, notes = rebuild.rebuild(there, place, worktree.task, [rebuild.Part(manifest, file)])
        assert notes == []
        vault = Vault(MemoryStore(), keys.task("acme", worktree.task), Path(away) / "scratch")
        vault.add(1, manifest, file, start=1, host="here")
        with resting.rested(there, worktree.task, branch, base, vault) as (rest, state):
            assert resting.live(rest, base, base) == changes.live(worktree, base, base)
            if not taken.looked.nested:
                assert resting.unmerged(rest, state, base, base) == changes.unmerged(worktree, base, base)
        assert git(place, "fsck", "--strict", "--no-dangling") == ""
        work.clear_nested(worktree.path)
        before, after = seen_by_git(worktree.path), seen_by_git(place)
        for name in before:
            here, away_from_it = (
                before[name].replace(os.fsencode(worktree.path), b""),
                after[name].replace(os.fsencode(place), b""),
            )
            assert undetached(here) == undetached(away_from_it), name
        if not taken.looked.nested:
            assert staged_by_git(place, Path(away) / "index") == taken.looked.tree
        assert labs.snapshots.look(again).tree == taken.looked.tree
        worktrees.remove(again, branch)


def examples(number: int) -> settings:
    """Not shrunk: one example takes a second, and a failing one names its steps as it is."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    return settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        print_blob=True,
        database=None,
    )


ALL_KINDS: list[work.Step] = [
    ("write", b"\xff\xfe", b"", b"latin \xe9\n"), ("symlink", b"link", b"a.txt", b""), ("chmod", b"README.md", b"", b""),
    ("directory", b"a.txt", b"", b"x\n" * 50), ("git mv", b"old name.txt", b"neu \xc3\xbc.txt", b""), ("stage", b"\xff\xfe", b"", b""),
    ("append", b"\xff\xfe", b"", b"more\n"), ("write", b"new\nline", b"", b"\x00\x01\x02binary\xff" * 20), ("nested", b"", b"", b""),
    ("intend", b"new\nline", b"", b""), ("delete", b"crlf.txt", b"", b""),
]  # fmt: skip


@pytest.mark.parametrize("ending", work.ENDINGS)
def test_work_of_all_kinds_with_each_way_to_stop_in_the_middle(ending: str) -> None:
    check(ALL_KINDS[:6], ALL_KINDS[6:], ending)


@examples(4)
@given(first=work.steps, second=work.steps, ending=work.endings)
def test_random_work_is_seen_as_git_sees_it_and_rebuilt_elsewhere(
    first: list[work.Step], second: list[work.Step], ending: str
) -> None:
    check(first, second, ending)


@pytest.mark.chaos
@examples(150)
@given(first=work.steps, second=work.steps, ending=work.endings)
def test_much_random_work(first: list[work.Step], second: list[work.Step], ending: str) -> None:
    check(first, second, ending)


def check(first: list[work.Step], second: list[work.Step], ending: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        lab = labs.make(base, work.prepare(base))
        start = lab.tip
        worktree, branch = lab.task()
        work.do(worktree.path, first)
        one = lab.take(worktree)
        assert one.looked.tree == staged_by_git(worktree.path, base / "index")
        work.do(worktree.path, second)
        work.end(worktree.path, ending)
        before = seen_by_git(worktree.path)
        own = (worktree.git_dir / "index").read_bytes() if (worktree.git_dir / "index").exists() else b""
        two = lab.take(worktree, 2, one.looked.tree)
        assert (worktree.git_dir / "index").read_bytes() == own, "the user's index was touched"
        assert seen_by_git(worktree.path) == before
        assert two.looked.tree == staged_by_git(worktree.path, base / "index")
        assert (two.snapshot is None) == (two.looked.tree == one.looked.tree)
        check_changes(worktree, start, two.looked.tree)
        check_rebuilt(lab, worktree, branch, two, start)
        assert git(lab.work, "fsck", "--strict", "--no-dangling") == ""
        worktrees.remove(worktree, branch)
        assert not worktree.path.exists() and worktree.task not in git(lab.work, "for-each-ref")
