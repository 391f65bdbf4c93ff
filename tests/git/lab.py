"""What the git tests build with: repositories made by plain git, as a user's own git makes them, and the library's handles on them."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.git import changes, projects, snapshots, worktrees
from app.git.projects import Opened
from app.git.repo import Repo, Worktree
from app.git.run import Git
from app.git.snapshots import Taken
from app.git.view import Views

USER = (
    "-c",
    "user.name=Test User",
    "-c",
    "user.email=test@example.com",
    "-c",
    "init.defaultBranch=main",
    "-c",
    "protocol.file.allow=always",
)


def environment(home: Path | None = None) -> dict[str, str]:
    """An environment for plain git in which nothing of the machine counts."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home or "/nonexistent"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
        "GIT_SEQUENCE_EDITOR": "true",
        "LC_ALL": "C",
    }


def git_bytes(
    where: Path, *words: str | bytes, ok: bool = True, env: dict[str, str] | None = None, data: bytes | None = None
) -> bytes:
    """Plain git's stdout. With `ok`, its failure fails the test."""
    done = subprocess.run(
        ["git", *USER, *words], cwd=where, env=environment() | (env or {}), capture_output=True, input=data, check=False
    )
    assert not ok or done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def git(where: Path, *words: str | bytes, ok: bool = True, env: dict[str, str] | None = None) -> str:
    """Plain git's stdout as text, stripped."""
    return os.fsdecode(git_bytes(where, *words, ok=ok, env=env)).strip()


def sh(where: Path, script: str) -> None:
    """Runs a shell script that uses plain git."""
    prelude = (
        "git() { command git -c user.name='Test User' -c user.email=test@example.com -c protocol.file.allow=always \"$@\"; }\n"
    )
    done = subprocess.run(["sh", "-ec", prelude + script], cwd=where, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, (script, done.stdout[-2000:], done.stderr[-2000:])


def origin_and_checkout(base: Path, files: dict[str, str] | None = None) -> tuple[Path, Path]:
    """A bare origin and a clone of it that has pushed a first commit on main."""
    origin, work = base / "origin.git", base / "work"
    git(base, "init", "-q", "--bare", str(origin))
    git(base, "clone", "-q", str(origin), str(work))
    git(work, "symbolic-ref", "HEAD", "refs/heads/main")
    for name, text in (files or {"README.md": "hello\n", "a.txt": "one\ntwo\nthree\n", ".gitignore": "ignored/\n"}).items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "first")
    git(work, "push", "-q", "origin", "main")
    git(work, "fetch", "-q")
    return origin, work


@dataclass
class Lab:
    """One project with what a worker has: `base` is the repository root, `views` the worker's."""

    base: Path
    views: Views
    opened: Opened
    work: Path
    origin: Path

    @property
    def repo(self) -> Repo:
        return self.opened.repo

    @property
    def tip(self) -> str:
        return projects.default_tip(self.repo, self.opened.default_branch)

    def task(self, title: str = "A task") -> tuple[Worktree, str]:
        """A new task's worktree and branch."""
        task = secrets.token_hex(16)
        branch = worktrees.branch_name(title, task)
        return worktrees.create(self.repo, self.base / "worktrees" / task, task, branch, self.tip), branch

    def take(self, worktree: Worktree, n: int = 1, previous: str = "") -> Taken:
        """A snapshot against the tree that the default branch has."""
        return snapshots.take(worktree, n, previous or changes.tree_of(self.repo, self.tip))


def worker_views(private: Path, *roots: Path) -> Views:
    """The views of a worker with a private directory of its own."""
    return Views(Git(private), roots)


def make(base: Path, files: dict[str, str] | None = None) -> Lab:
    """A project with an origin, opened."""
    origin, work = origin_and_checkout(base, files)
    views = worker_views(base / "private", base)
    return Lab(base, views, projects.open_directory(views, str(work), [base]), work, origin)
