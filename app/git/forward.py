"""Bringing the user's checkout along after a merge.

Rules: only ever a fast-forward, as `git merge --ff-only` does it: files that the user has changed are never overwritten, local commits
never left behind, another branch's checkout never touched. What isn't possible changes nothing and says what a person can do. Each step
can be repeated: a crash between files and ref is completed by the next call.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from app.git import remotes
from app.git.changes import is_ancestor
from app.git.errors import GitFailed
from app.git.projects import own_directory
from app.git.repo import Repo

_UNDER_WAY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "BISECT_LOG")


class Forwarded(NamedTuple):
    """`done`: it is at the commit now; `already`: it was; `none`: there is no such branch or checkout. The others: what holds it up."""

    outcome: Literal["done", "already", "none", "dirty", "diverged", "busy", "elsewhere"]
    advice: str = ""


def fast_forward(repo: Repo, branch: str, commit: str) -> Forwarded:
    """Moves the local `branch`, and the checkout if it is on it, forward to `commit`. Raises GitError for the unexpected only."""
    ref = f"refs/heads/{remotes.branch(branch)}"
    here = repo.tip(ref)
    if repo.checkout is None or here is None:
        return Forwarded("none")
    if is_ancestor(repo, commit, here):
        return Forwarded("already")
    if not is_ancestor(repo, here, commit):
        return Forwarded("diverged", f"{branch} has local commits that origin lacks: rebase or push them, then `git pull`")
    own = own_directory(repo)
    if repo.head(own).ref == ref:
        for name in _UNDER_WAY:
            if (own / name).exists():
                return Forwarded(
                    "busy", f"a merge or rebase is under way in the checkout: finish it, then `git merge --ff-only {commit}`"
                )
        held_up = _update_files(repo, here, commit)
        if held_up:
            return held_up
    elif any(repo.head(place).ref == ref for place in (repo.common, *(repo.common / "worktrees").glob("*"))):
        return Forwarded("elsewhere", f"{branch} is checked out in another worktree: run `git merge --ff-only {commit}` there")
    try:
        repo.run("update-ref", "-m", "byre: fast-forward", ref, commit, here)
    except GitFailed:
        return Forwarded("busy", f"{branch} has just been changed: run `git merge --ff-only {commit}`")
    return Forwarded("done")


def _update_files(repo: Repo, here: str, commit: str) -> Forwarded | None:
    """Takes the checkout's files from one commit to the other; git checks all of them before it changes one."""
    assert repo.checkout
    own = own_directory(repo)
    view = repo.views.of(repo.common, own, work_tree=repo.checkout, index=own / "index")
    git = repo.views.git
    git.run(view, "update-index", "-q", "--refresh", ok=(0, 1, 128))
    try:
        git.run(view, "read-tree", "-m", "-u", here, commit, seconds=600)
    except GitFailed as error:
        if "index.lock" in error.detail:
            return Forwarded("busy", f"git is at work in the checkout: run `git merge --ff-only {commit}` when it is done")
        return Forwarded(
            "dirty", f"the checkout has changes in the same files: commit or stash them, then `git merge --ff-only {commit}`"
        )
    return None
