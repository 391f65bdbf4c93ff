"""Snapshots: a task's worktree as a commit, as if everything were staged.

Rules (design 04): the parent is HEAD; the ref is refs/byre/tasks/{id}/snap/{n}; a tree like the one before makes no snapshot; the user's
index, HEAD and hooks are untouched. Beside the tree, what else git knows of the worktree is captured (state.py), so that a rebuilt one is
in the same state. One look at a time per worktree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.git import locks, paths, state
from app.git.errors import GitFailed
from app.git.index import LISTED, Found, PrivateIndex
from app.git.repo import Worktree
from app.git.run import BYRE
from app.git.state import State

_REMEMBERED = 500  # Live trees that a diff may be asked of.


@dataclass(frozen=True)
class Looked:
    """The worktree as a tree, and what could not be in it, as shown to people.

    `nested`: repositories inside, of which only the commit is kept. `ignored`: at most 1,000 of `ignored_count`. `left`: files that could
    not be read or converted. `large`: changed files that git-lfs keeps outside of git, so that a bundle has only their pointers.
    """

    tree: str
    nested: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    ignored_count: int = 0
    left: tuple[str, ...] = ()
    large: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """A snapshot: number, commit, tree."""

    n: int
    commit: str
    tree: str


@dataclass(frozen=True)
class Taken:
    """What `take` found: the new snapshot (None: nothing had changed), how the worktree looked, and git's state beside it."""

    snapshot: Snapshot | None
    looked: Looked
    state: State


def namespace(task: str) -> str:
    """All of a task's refs but its branch begin so."""
    return f"refs/byre/tasks/{task}/"


def ref(task: str, n: int) -> str:
    """The ref of a snapshot."""
    return f"{namespace(task)}snap/{n}"


def look(worktree: Worktree, *, ignored: bool = True, only: Sequence[bytes] = ()) -> Looked:
    """The worktree as a tree, now. With `only`, these paths alone are looked at, the rest is taken as it was at the look before.

    Raises TooLarge, GitError.
    """
    with locked(worktree):
        return _look(worktree, ignored, only)


def take(worktree: Worktree, n: int, previous_tree: str, *, ignored: bool = True, only: Sequence[bytes] = ()) -> Taken:
    """Takes snapshot `n` unless the tree is still `previous_tree` (the last snapshot's, or the base commit's).

    Raises TooLarge, GitError.
    """
    with locked(worktree):
        seen = state.capture(worktree)
        looked = _look(worktree, ignored, only)
        if looked.tree == previous_tree:
            return Taken(None, looked, seen)
        parents = ["-p", seen.head] if seen.head else []
        done = worktree.run("commit-tree", *parents, "-m", f"byre snapshot {n}", looked.tree, environment=BYRE)
        commit = done.text
        worktree.run("update-ref", ref(worktree.task, n), commit)
        PrivateIndex(worktree).compare_with(commit)
        return Taken(Snapshot(n, commit, looked.tree), looked, seen)


def observe(worktree: Worktree) -> Taken:
    """The worktree as it is, without a snapshot of it. Raises TooLarge, GitError."""
    with locked(worktree):
        return Taken(None, _look(worktree, True, ()), state.capture(worktree))


def forget_after(worktree: Worktree, n: int) -> None:
    """Removes refs of snapshots after `n`: nobody was told of them, and their numbers are given again. Raises GitError."""
    prefix = namespace(worktree.task) + "snap/"
    numbers = [
        name.removeprefix(prefix) for name in worktree.repo.run("for-each-ref", "--format=%(refname)", prefix).text.split()
    ]
    doomed = "".join(f"delete {prefix}{number}\n" for number in numbers if number.isdecimal() and int(number) > n)
    if doomed:
        worktree.repo.run("update-ref", "--stdin", input=doomed.encode())


def recent_trees(worktree: Worktree) -> list[str]:
    """The trees that the last looks gave, newest last."""
    with contextlib.suppress(OSError):
        return (worktree.private / "trees").read_text().split()
    return []


def _look(worktree: Worktree, ignored: bool, only: Sequence[bytes]) -> Looked:
    index = PrivateIndex(worktree)
    found = Found(changed=list(only)) if only and index.path.exists() else index.look(ignored=ignored)
    index.take(found)
    try:
        tree = index.tree()
    except GitFailed:
        # Somebody's `git gc` has removed an object that only this index had: from the beginning, then.
        index.seed()
        index.take(index.look(ignored=False))
        tree = index.tree()
    _remember(worktree, tree)
    return Looked(
        tree, _shown(found.nested), _shown(found.ignored), found.ignored_count, _shown(found.left), _shown(found.large)
    )


def _remember(worktree: Worktree, tree: str) -> None:
    known = recent_trees(worktree)
    if tree not in known[-1:]:
        kept = [*(old for old in known[-_REMEMBERED:] if old != tree), tree]
        (worktree.private / "trees").write_text("\n".join(kept))


def _shown(found: list[bytes]) -> tuple[str, ...]:
    return tuple(paths.show(path) for path in found[:LISTED])


@contextlib.contextmanager
def locked(worktree: Worktree) -> Iterator[None]:
    """One look, snapshot or rebuild at a time. Raises Unavailable after a while."""
    with locks.held(worktree.private / "lock"):
        yield
