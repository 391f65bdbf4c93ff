"""Handles of what git works on here: a project's repository, and a task's worktree in it.

Rules: a handle is two or three paths and says nothing about what is there now. A worktree's git directory is derived from its path, never
read from the `.git` file in it, which its agent may have rewritten. HEAD is read by us (a view has none of its own).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from app.core.errors import Invalid
from app.git import remotes
from app.git.run import Done, View
from app.git.view import Views


class Head(NamedTuple):
    """`ref`: the full name of the branch that HEAD is on, None if detached. `commit`: its commit, None if there is none yet."""

    ref: str | None
    commit: str | None


@dataclass(frozen=True)
class Repo:
    """A project's repository. `common` is its own directory, `checkout` the user's directory (None for a mirror of ours)."""

    views: Views
    common: Path
    checkout: Path | None = None

    @property
    def view(self) -> View:
        """How git sees it, without any worktree."""
        return self.views.of(self.common)

    def run(self, *arguments: str, **options: Any) -> Done:
        """`Git.run` on the repository."""
        return self.views.git.run(self.view, *arguments, **options)

    def head(self, git_dir: Path | None = None) -> Head:
        """HEAD of the repository, or of the worktree that `git_dir` belongs to."""
        text = _read_head((git_dir or self.common) / "HEAD")
        if not text.startswith("ref:"):
            return Head(None, text if remotes.is_object(text) else None)
        ref = text[4:].strip()
        return Head(ref, self.tip(ref))

    def tip(self, ref: str) -> str | None:
        """The commit that a full ref name points at, None if there is none."""
        if not ref.startswith("refs/"):
            return None
        try:
            remotes.branch(ref)
        except Invalid:
            return None
        with contextlib.suppress(OSError):  # A loose ref needs no process. Worktrees' own refs (refs/bisect) aren't asked for.
            with (self.common / ref).open("rb") as file:
                text = os.fsdecode(file.read(128)).strip()
            if remotes.is_object(text):
                return text
        done = self.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", ok=(0, 1, 128))
        return done.text if done.status == 0 and remotes.is_object(done.text) else None

    def symref(self, ref: str) -> str | None:
        """The ref that a symbolic ref points at, None if it is none."""
        done = self.run("symbolic-ref", "--quiet", ref, ok=(0, 1, 128))
        return done.text if done.status == 0 else None

    def exists(self, commit: str) -> bool:
        """Whether the object is there and a commit."""
        return self.run("cat-file", "-e", f"{commit}^{{commit}}", ok=(0, 1, 128)).status == 0


@dataclass(frozen=True)
class Worktree:
    """A task's worktree: `path` is where its files are, `task` the id of its task."""

    repo: Repo
    path: Path
    task: str

    @property
    def git_dir(self) -> Path:
        """Its own git directory, inside the repository's."""
        return self.repo.common / "worktrees" / self.task

    @property
    def private(self) -> Path:
        """What we keep about it where its agent can't write: the private index."""
        place = self.repo.views.git.private / "tasks" / self.task
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place

    @property
    def view(self) -> View:
        """How git sees it, with its own index."""
        return self.repo.views.of(self.repo.common, self.git_dir, work_tree=self.path, index=self.git_dir / "index")

    def run(self, *arguments: str, index: Path | None = None, **options: Any) -> Done:
        """`Git.run` in the worktree, on its own index or another one."""
        view = self.view
        return self.repo.views.git.run(View(view.git_dir, view.work_tree, index or view.index), *arguments, **options)

    def head(self) -> Head:
        """The worktree's HEAD."""
        return self.repo.head(self.git_dir)


@dataclass(frozen=True)
class Rested:
    """A task's work as it was saved last, without its worktree: its objects are in the repository.

    `tree` is the worktree's, `head` its commit. Attributes of files are read from `index`, which holds `tree`; `empty` is a directory of
    ours without any file.
    """

    repo: Repo
    task: str
    tree: str
    head: str | None
    index: Path
    empty: Path

    def run(self, *arguments: str, **options: Any) -> Done:
        """`Git.run` on the repository, with the attributes that the saved files have."""
        return self.repo.views.git.run(View(self.repo.view.git_dir, self.empty, self.index), *arguments, **options)


def _read_head(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        if path.is_symlink():  # How git wrote HEAD before there were symbolic refs.
            return f"ref: {path.readlink()}"
        with path.open("rb") as file:
            return os.fsdecode(file.read(4096)).strip()
    return ""
