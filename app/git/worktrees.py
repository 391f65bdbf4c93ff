"""Worktrees of tasks: made, listed, measured, removed.

They are git's linked worktrees, with the few files that make one written by us: so neither hooks run nor is the repository's configuration
read, and its git directory has the task's id as its name, wherever the worktree is. The files are checked out by git.

Rules: creation marks the worktree as locked until it is whole, so what a crash has left is known and made anew, and `git worktree prune` of
a user doesn't touch it meanwhile. Removal needs neither the directory nor the branch to be there, and never follows a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.core.errors import Conflict, Invalid
from app.git import remotes
from app.git.index import PrivateIndex
from app.git.repo import Repo, Worktree
from app.git.snapshots import namespace

_BEING_MADE = "byre is making this worktree\n"
CHECKOUT_SECONDS = 600.0
_LOCKS = ("index.lock", "HEAD.lock", "MERGE_HEAD.lock", "ORIG_HEAD.lock")


def branch_name(title: str, task: str) -> str:
    """`byre/{slug}-{short id}` of a task. The id's last 8 digits are random (its first ones are a time)."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    slug = "-".join(re.findall(r"[a-z0-9]+", plain))[:40].strip("-")
    return f"byre/{slug or 'task'}-{task[-8:]}"


def identity(name: str, email: str) -> dict[str, str]:
    """Environment that makes git commit as this person, for a harness: no configuration of the repository is changed for it."""
    clean = [re.sub(r"[\x00-\x1f<>]", "", text).strip() for text in (name, email)]
    return {
        f"GIT_{role}_{what}": text
        for role in ("AUTHOR", "COMMITTER")
        for what, text in zip(("NAME", "EMAIL"), clean, strict=True)
    }


def create(repo: Repo, path: Path, task: str, branch: str, commit: str) -> Worktree:
    """A worktree at `path` on a new branch from `commit`, its private index ready.

    What an interrupted creation has left is made anew; a whole one is given as it is. Raises Conflict if something else is in the
    way, GitError.
    """
    worktree = Worktree(repo, path, task)
    remotes.branch(branch)
    ref = f"refs/heads/{branch}"
    if worktree.git_dir.exists():
        if not _is_being_made(worktree):
            return worktree
        remove(worktree, branch)
    if path.exists() and any(path.iterdir()):
        raise Conflict("the place of the worktree is taken by other files")
    _register(worktree, f"ref: {ref}\n")
    tip = repo.tip(ref)
    if tip and tip != commit:
        shutil.rmtree(worktree.git_dir)
        raise Conflict(f"there is a branch {branch} already")
    if not tip:
        repo.run("update-ref", ref, commit, "0" * len(commit))
    _inherit_sparse(worktree)
    check_out(worktree, commit)
    PrivateIndex(worktree).seed()
    (worktree.git_dir / "locked").unlink()
    return worktree


def check_out(worktree: Worktree, commit: str, *, index: Path | None = None) -> None:
    """Fills an empty worktree with the files of `commit` (or of a tree)."""
    worktree.run("read-tree", "-m", "-u", commit, index=index, seconds=CHECKOUT_SECONDS)


def register(worktree: Worktree, head: str) -> None:
    """Makes a worktree without files, marked as being made; `head` is the content of its HEAD file. Raises Conflict if it exists."""
    _register(worktree, head)


def finish(worktree: Worktree) -> None:
    """Takes the mark away that `register` has set."""
    (worktree.git_dir / "locked").unlink(missing_ok=True)


def remove(worktree: Worktree, branch: str | None = None) -> list[str]:
    """Removes a task's worktree, its refs and (if given) its branch, as far as they are there. Gives what was left, and why.

    A branch that another worktree is on is left. Raises GitError, OSError.
    """
    repo = worktree.repo
    _remove_files(worktree.path)
    _remove_git_dir(worktree)
    shutil.rmtree(worktree.private, ignore_errors=True)
    doomed = refs_of(repo, worktree.task)
    notes = []
    if branch and repo.tip(f"refs/heads/{branch}"):
        remotes.branch(branch)
        if f"refs/heads/{branch}" in _heads(repo):
            notes.append(f"the branch {branch} is checked out elsewhere and was left")
        else:
            doomed.append(f"refs/heads/{branch}")
    if doomed:
        lines = "".join(f"delete {ref}\n" for ref in doomed)
        repo.run("update-ref", "--stdin", input=lines.encode())
    return notes


def break_locks(worktree: Worktree, branch: str) -> list[str]:
    """Removes locks that a git which was killed has left in a worktree that nobody works in; gives their names."""
    places = (*(worktree.git_dir / name for name in _LOCKS), worktree.repo.common / "refs" / "heads" / f"{branch}.lock")
    left = [place for place in places if place.is_file()]
    for place in left:
        place.unlink(missing_ok=True)
    return [place.name for place in left]


def refs_of(repo: Repo, task: str) -> list[str]:
    """All refs that belong to a task but its branch."""
    return repo.run("for-each-ref", "--format=%(refname)", namespace(task)).text.split()


def tasks(repo: Repo) -> list[str]:
    """Ids of tasks that have a worktree in this repository, whole or not, there or not."""
    with contextlib.suppress(OSError):
        return sorted(entry.name for entry in (repo.common / "worktrees").iterdir() if re.fullmatch("[0-9a-f]{32}", entry.name))
    return []


def is_whole(worktree: Worktree) -> bool:
    """Whether the worktree was made to the end and its directory is there, and is the one that git knows."""
    return (
        worktree.git_dir.is_dir()
        and not _is_being_made(worktree)
        and worktree.path.is_dir()
        and not worktree.path.is_symlink()
        and _is_known_place(worktree)
    )


def leave(worktree: Worktree) -> None:
    """Removes a worktree's files and what git and we know of them; its branch and refs stay. Raises OSError.

    What belongs to a worktree of the same task elsewhere, on a disk that shares the repository, is left alone.
    """
    if _is_known_place(worktree):
        _remove_git_dir(worktree)
    _remove_files(worktree.path)
    shutil.rmtree(worktree.private, ignore_errors=True)


def size(place: Path) -> int:
    """Bytes on disk of all files below a directory, 0 if it is gone. A file with several names counts once."""
    total, seen, todo = 0, set(), [os.fsencode(place)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if (about.st_dev, about.st_ino) not in seen:
                        total += about.st_blocks * 512
                        if about.st_nlink > 1:
                            seen.add((about.st_dev, about.st_ino))
                    if stat.S_ISDIR(about.st_mode):
                        todo.append(entry.path)
    return total


def _register(worktree: Worktree, head: str) -> None:
    if not re.fullmatch("[0-9a-f]{32}", worktree.task):
        raise Invalid("a task's id is 32 hex digits", "task")
    worktree.path.mkdir(parents=True, exist_ok=True)
    for _ in range(10):  # git removes the folder when the last worktree goes.
        worktree.git_dir.parent.mkdir(exist_ok=True)
        try:
            worktree.git_dir.mkdir()
            break
        except FileExistsError:
            raise Conflict("the task has a worktree already") from None
        except FileNotFoundError:
            continue
    files = {"locked": _BEING_MADE, "HEAD": head, "commondir": "../..\n", "gitdir": f"{worktree.path / '.git'}\n"}
    for name, text in files.items():
        (worktree.git_dir / name).write_text(text)
    (worktree.path / ".git").write_text(f"gitdir: {worktree.git_dir}\n")


def _remove_files(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, onerror=_make_writable)


def _remove_git_dir(worktree: Worktree) -> None:
    for module in (worktree.git_dir / "modules").glob("*"):
        worktree.repo.views.forget(module)
    if worktree.git_dir.exists():
        shutil.rmtree(worktree.git_dir, onerror=_make_writable)
    worktree.repo.views.forget(worktree.git_dir)


def _is_known_place(worktree: Worktree) -> bool:
    with contextlib.suppress(OSError):
        known = Path((worktree.git_dir / "gitdir").read_text().strip())
        return known == worktree.path / ".git" or known.parent.resolve() == worktree.path.resolve()
    return False


def _is_being_made(worktree: Worktree) -> bool:
    with contextlib.suppress(OSError):
        return (worktree.git_dir / "locked").read_text() == _BEING_MADE
    return False


def _inherit_sparse(worktree: Worktree) -> None:
    """A sparse checkout's patterns hold for worktrees made from it, as with git itself."""
    patterns = worktree.repo.common / "info" / "sparse-checkout"
    config = worktree.repo.common / "config.worktree"
    if patterns.is_file() and worktree.repo.checkout:
        (worktree.git_dir / "info").mkdir(exist_ok=True)
        shutil.copyfile(patterns, worktree.git_dir / "info" / "sparse-checkout")
        if config.is_file():
            found = worktree.repo.views.config(config)
            lines = [f"\t{name.split('.')[1]} = {value}\n" for name, value in found if name.startswith("core.sparsecheckout")]
            (worktree.git_dir / "config.worktree").write_text("".join(["[core]\n", *lines]))


def _heads(repo: Repo) -> set[str | None]:
    places: Sequence[Path] = [repo.common, *(repo.common / "worktrees").glob("*")]
    return {repo.head(place).ref for place in places}


def _make_writable(function: Callable[..., Any], path: str, error: Any) -> None:
    """A directory without the right to write holds up the removal of what is in it."""
    if isinstance(error[1], FileNotFoundError):
        return
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        if not Path(path).is_symlink():
            Path(path).chmod(0o700)
    function(path)
