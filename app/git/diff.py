"""The unified diff of one file between a base and a tree that `changes` gave.

Rules: base and tree must be objects of the task (a tree: of a snapshot or of a look at the worktree; a commit: in its history), the path
one file. At most `MAX_BYTES` of a patch are read, the rest is cut and the patch says so. Bytes that are no UTF-8 show as U+FFFD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.core.errors import Missing
from app.git import paths, remotes, snapshots
from app.git.changes import COMPARE_SECONDS, EMPTY_TREE, history_commit
from app.git.repo import Repo, Rested, Worktree

MAX_BYTES = 2**20
CUT = "\\ The patch is longer than 1 MiB and was cut here\n"


@dataclass(frozen=True)
class FileDiff:
    """`patch` as git writes it, "" if the file is the same in both."""

    path: str
    patch: str
    cut: bool = False


def file_diff(
    where: Worktree | Rested, task: str, base: str, tree: str, path: str, old_path: str | None = None, *, base_ref: str
) -> FileDiff:
    """The patch of one file. `old_path`: where it was renamed from. Raises Invalid, Missing, GitError."""
    old = paths.parse(old_path, "old_path") if old_path else None
    new = paths.parse(path, "path")
    repo = where.repo
    known = _trees(where, task)
    tree = remotes.object_id(tree, "tree")
    if tree not in known:
        raise Missing("tree is no tree of this task: ask for its changes again")
    base = remotes.object_id(base, "base")
    if base not in known and base not in EMPTY_TREE.values():
        head = where.head().commit if isinstance(where, Worktree) else where.head
        history_commit(repo, task, base, "base", head, base_ref)
    options: dict[str, Any] = {"index": where.private / "index"} if isinstance(where, Worktree) else {}
    rename = ["--find-renames"] if old and old != new else ["--no-renames"]
    done = where.run(
        "diff-tree", "-r", "--patch", "--full-index", *rename, "--no-ext-diff", "--no-textconv", "--no-color",
        base, tree, "--", *_only(new), *(_only(old) if old else []),
        environment={"GIT_LITERAL_PATHSPECS": "0"}, seconds=COMPARE_SECONDS, limit=MAX_BYTES, cut=True, **options,
    )  # fmt: skip
    if not done.out and not _exists(repo, base, new) and not _exists(repo, tree, new):
        raise Missing(f"there is no file {paths.show(new)[:200]} in either")
    if not done.cut:
        return FileDiff(path, done.out.decode("utf-8", "replace"))
    whole = done.out[: done.out.rfind(b"\n") + 1] or done.out + b"\n"
    return FileDiff(path, whole.decode("utf-8", "replace") + CUT, cut=True)


def _trees(where: Worktree | Rested, task: str) -> set[str]:
    prefix = snapshots.namespace(task) + "snap/"
    found = set(where.repo.run("for-each-ref", "--format=%(tree)", prefix).text.split())
    return found | (set(snapshots.recent_trees(where)) if isinstance(where, Worktree) else {where.tree})


def _only(path: bytes) -> list[str]:
    """Pathspecs of this file, and not of what lies below where it is a directory on one side."""
    text = path.decode("utf-8", "surrogateescape")
    return [f":(top,literal){text}", f":(top,exclude,literal){text}/"]


def _exists(repo: Repo, tree: str, path: bytes) -> bool:
    done = repo.run("ls-tree", "-z", "--full-tree", tree, "--", path.decode("utf-8", "surrogateescape"))
    return bool(done.out)
