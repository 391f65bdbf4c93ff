"""A task's worktree made again from the project's repository and the task's bundles.

Rules: the rebuilt worktree has the same HEAD, branch, tree, index and state of git as when the last bundle was made; files have new times.
It is marked as being made until it is whole. What the repository already has under the task's names and the bundles don't (work that had
not reached the store) isn't thrown away: it is kept at refs/byre/tasks/{id}/kept/{commit}, and said in the notes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.core.errors import Conflict, Corrupt
from app.git import bundles, remotes, snapshots, worktrees
from app.git.index import PrivateIndex
from app.git.repo import Repo, Worktree
from app.git.state import State, put_back


class Part(NamedTuple):
    """One bundle of a chain: its manifest, its file (None: the repository has what is in it), and its key in the store, for errors."""

    manifest: Mapping[str, Any]
    file: Path | None
    key: str = ""


class Rebuilt(NamedTuple):
    """The worktree, and what could not be as it was."""

    worktree: Worktree
    notes: list[str]


def objects(repo: Repo, task: str, parts: Sequence[Part], *, branch: bool = True) -> list[str]:
    """Puts a task's objects, snapshots and branch into the repository, without a worktree. `parts`: a full bundle and those after it.

    Without `branch` a branch that is there stays where it is: another host may have a worktree on it. Gives notes. Raises Corrupt,
    MissingBase, GitError.
    """
    for part in parts:
        if part.manifest["task"] != task:
            raise Corrupt("a bundle is of another task", part.key)
        if part.file is None:
            continue
        if not repo.exists(part.manifest["carrier"]):
            bundles.apply(repo, part.file, part.manifest, part.key)
        else:
            bundles.verify(part.file, part.manifest, part.key)
    last = parts[-1].manifest
    name = remotes.branch(last["branch"])
    wanted = {snapshots.ref(task, int(n)): oid for part in parts for n, oid in part.manifest["snapshots"].items()}
    wanted[snapshots.namespace(task) + "carrier"] = last["carrier"]
    notes = []
    if last["branch_tip"]:
        ref = f"refs/heads/{name}"
        here = repo.tip(ref)
        if here and not branch:
            ref = ""
        elif here and here != last["branch_tip"]:
            wanted[f"{snapshots.namespace(task)}kept/{here}"] = here
            notes.append(f"the branch was at {here[:12]}, which had not reached the store: it is kept in the repository")
        if ref:
            wanted[ref] = last["branch_tip"]
    repo.run("update-ref", "--stdin", input="".join(f"update {ref} {oid}\n" for ref, oid in wanted.items()).encode())
    return notes


def rebuild(repo: Repo, path: Path, task: str, parts: Sequence[Part]) -> Rebuilt:
    """The worktree of a task at `path`, where there is none. Raises Conflict, Corrupt, MissingBase, GitError."""
    worktree = Worktree(repo, path, task)
    if worktrees.is_whole(worktree):
        raise Conflict("the task has a worktree already")
    if path.exists() and not worktree.git_dir.exists() and any(path.iterdir()):
        raise Conflict("the place of the worktree is taken by other files")
    notes = objects(repo, task, parts)
    _clear(worktree)
    last = parts[-1].manifest
    state = State.from_json(last["state"])
    worktrees.register(worktree, _head(repo, state, notes))
    worktrees.check_out(worktree, last["tree"])
    index = PrivateIndex(worktree)
    shutil.copy2(worktree.git_dir / "index", index.path)
    index.compare_with(repo.tip(snapshots.ref(task, last["n"])) or state.head or last["base"])
    put_back(worktree, state)
    worktrees.finish(worktree)
    return Rebuilt(worktree, notes)


def _clear(worktree: Worktree) -> None:
    """Removes what an interrupted rebuild, or a directory that went away, has left."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(worktree.git_dir)
    if worktree.path.exists():
        shutil.rmtree(worktree.path)
    shutil.rmtree(worktree.private, ignore_errors=True)


def _head(repo: Repo, state: State, notes: list[str]) -> str:
    """The content of the HEAD file: the branch that the worktree was on, or its commit if that branch is not to be had here."""
    if state.ref is None:
        return f"{state.head}\n"
    remotes.branch(state.ref)
    tip = repo.tip(state.ref)
    if state.head is None or tip == state.head:
        return f"ref: {state.ref}\n"
    if tip is None and state.ref.startswith("refs/heads/"):
        repo.run("update-ref", state.ref, state.head, "0" * len(state.head))
        return f"ref: {state.ref}\n"
    notes.append(f"{state.ref} is elsewhere in this repository: HEAD is detached at {state.head[:12]}")
    return f"{state.head}\n"
