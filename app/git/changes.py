"""What a task has changed: files between two trees, and what isn't on the default branch yet.

Rules (design 04, and the contract's TaskChanges, FileChange, Unmerged): git compares, and finds renames as `git diff` does without
settings; attributes of the worktree count where there is one. A base that a caller names must be a commit of this task's history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.core.errors import Missing, TooLarge
from app.git import objects, paths, remotes, snapshots
from app.git.errors import GitTooMuch
from app.git.index import PrivateIndex
from app.git.repo import Repo, Rested, Worktree

EMPTY_TREE = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
COMPARE_SECONDS = 120.0
_STATUS = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "T": "type_changed"}
_COMPARE = ("diff-tree", "-r", "-z", "--raw", "--numstat", "--find-renames", "--no-ext-diff", "--no-textconv", "--no-color")


@dataclass(frozen=True)
class FileChange:
    """One file that differs. `old_path` for renames only. Lines added and deleted are 0 for binary files."""

    path: str
    status: str
    additions: int
    deletions: int
    binary: bool
    old_path: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As in the contract."""
        value: dict[str, Any] = {
            "path": self.path,
            "status": self.status,
            "additions": self.additions,
            "deletions": self.deletions,
        }
        value["binary"] = self.binary
        if self.old_path is not None:
            value["old_path"] = self.old_path
        return value


@dataclass(frozen=True)
class TaskChanges:
    """`base`: the commit or tree compared with; `tree`: the worktree's or snapshot's."""

    base: str
    tree: str
    files: list[FileChange]

    def to_json(self) -> dict[str, Any]:
        """As in the contract."""
        return {"base": self.base, "tree": self.tree, "files": [file.to_json() for file in self.files]}


@dataclass(frozen=True)
class Unmerged:
    """What the worktree holds that the default branch doesn't; see the contract."""

    commits: int
    files: int
    insertions: int
    deletions: int
    uncommitted: int


def live(worktree: Worktree, default_tip: str, base_ref: str, since: str | None = None) -> TaskChanges:
    """The worktree now against its merge base with the default branch, or against `since`.

    `base_ref` is the commit that the task started from: the base where the histories have nothing in common. Raises Invalid, Missing
    for a bad `since`; TooLarge, GitError.
    """
    base = history_commit(worktree.repo, worktree.task, since, "since", worktree.head().commit, base_ref) if since else None
    tree = snapshots.look(worktree, ignored=False).tree
    base = base or merge_base(worktree.repo, worktree.head().commit or base_ref, default_tip) or base_ref
    return TaskChanges(base, tree, between(worktree, base, tree))


def of_snapshot(
    where: Worktree | Rested, task: str, n: int, default_tip: str, base_ref: str, *, step: bool = False
) -> TaskChanges:
    """A snapshot against the merge base of its commit, or with `step` against the snapshot before (its parent for the first).

    Raises Missing if there is no such snapshot, TooLarge, GitError.
    """
    repo = where.repo
    commit = repo.tip(snapshots.ref(task, n))
    if commit is None:
        raise Missing(f"the task has no snapshot {n}")
    tree = tree_of(repo, commit)
    if not step:
        base = merge_base(repo, commit, default_tip) or base_ref
    else:
        before = repo.tip(snapshots.ref(task, n - 1)) if n > 1 else None
        base = tree_of(repo, before) if before else parent_of(repo, commit)
    return TaskChanges(base, tree, between(where, base, tree))


def between(where: Worktree | Rested, base: str, tree: str) -> list[FileChange]:
    """The files that differ between two trees or commits, in git's order. Raises TooLarge, GitError."""
    options: dict[str, Any] = {"index": where.private / "index"} if isinstance(where, Worktree) else {}
    try:
        out = where.run(*_COMPARE, base, tree, "--", seconds=COMPARE_SECONDS, **options).out
    except GitTooMuch:
        raise TooLarge("the changes are too many to be listed") from None
    return list(_files(iter(out.split(b"\0"))))


def unmerged(worktree: Worktree, default_tip: str, base_ref: str) -> Unmerged:
    """What would be lost if the task were discarded. Raises TooLarge, GitError."""
    changes = live(worktree, default_tip, base_ref)
    head = worktree.head().commit
    commits = int(worktree.repo.run("rev-list", "--count", head, f"^{default_tip}", "--").text) if head else 0
    return Unmerged(
        commits,
        len(changes.files),
        sum(file.additions for file in changes.files),
        sum(file.deletions for file in changes.files),
        _uncommitted(worktree, head),
    )


def merge_base(repo: Repo, one: str, other: str) -> str | None:
    """The best common ancestor of two commits, None if there is none."""
    done = repo.run("merge-base", one, other, ok=(0, 1))
    return done.text.split("\n")[0] if done.status == 0 else None


def is_ancestor(repo: Repo, one: str, other: str) -> bool:
    """Whether the commit `other` contains `one`."""
    return repo.run("merge-base", "--is-ancestor", one, other, ok=(0, 1)).status == 0


def tree_of(repo: Repo, commit: str) -> str:
    """The tree of a commit."""
    if found := objects.links(repo.common, commit):
        return found.tree
    return repo.run("rev-parse", "--verify", f"{commit}^{{tree}}").text


def parent_of(repo: Repo, commit: str) -> str:
    """The first parent of a commit; the empty tree if it has none."""
    if found := objects.links(repo.common, commit):
        return found.parents[0] if found.parents else EMPTY_TREE[len(commit)]
    done = repo.run("rev-parse", "--verify", "--quiet", f"{commit}^1", ok=(0, 1))
    return done.text if done.status == 0 else EMPTY_TREE[len(commit)]


def history_commit(repo: Repo, task: str, text: str, field: str, *known: str | None) -> str:
    """`text`, if it is the id of a commit in this task's history: reachable from its snapshots or from the commits `known`.

    Raises Invalid if it is no object id, Missing if it isn't there or not in the history.
    """
    commit = remotes.object_id(text, field)
    roots = [root for root in known if root]
    tips = repo.run("for-each-ref", "--format=%(objectname)", snapshots.namespace(task)).text.split()
    if repo.run("cat-file", "-t", commit, ok=(0, 1, 128)).text != "commit":
        raise Missing(f"{field} is no commit of this task")
    lines = "".join([f"{commit}\n", *(f"^{tip}\n" for tip in [*roots, *tips])]).encode()
    if repo.run("rev-list", "--max-count=1", "--stdin", input=lines).out:
        raise Missing(f"{field} is no commit of this task")
    return commit


def _files(fields: Iterator[bytes]) -> Iterator[FileChange]:
    """Reads `--raw --numstat -z`: first all raw entries, then their counts in the same order."""
    entries: list[tuple[str, bytes, bytes | None]] = []
    for entry in fields:
        if not entry.startswith(b":"):
            first = entry
            break
        letter = entry.rsplit(b" ", 1)[1][:1].decode()
        path = next(fields)
        entries.append((letter, next(fields), path) if letter == "R" else (letter, path, None))
    for letter, path, old in entries:
        added, deleted, _ = first.split(b"\t", 2)
        if old is not None:
            next(fields), next(fields)
        binary = added == b"-"
        yield FileChange(
            paths.show(path),
            _STATUS[letter],
            0 if binary else int(added),
            0 if binary else int(deleted),
            binary,
            None if old is None else paths.show(old),
        )
        first = next(fields)


def _uncommitted(worktree: Worktree, head: str | None) -> int:
    """How many entries `git status` has."""
    index = PrivateIndex(worktree)
    with snapshots.locked(worktree):
        before = (worktree.view.git_dir / "HEAD").read_text().strip()
        index.compare_with(head or "ref: refs/heads/byre/none")
        try:
            out = worktree.run("status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=dirty").out
        finally:
            index.compare_with(before)
    count, fields = 0, iter(out.split(b"\0"))
    for entry in fields:
        count += bool(entry)
        if entry.startswith(b"2 "):
            next(fields)  # where it was renamed from
    return count
