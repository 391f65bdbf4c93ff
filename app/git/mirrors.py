"""Mirrors: bare repositories of ours for projects that are a git address, and their copies in the store.

A mirror keeps origin's branches at refs/remotes/origin, as a user's clone does, so that everything else treats both alike; tasks' branches
and worktrees live in it too. Its bundles hold only what is origin's: what a task needs beyond that is in the task's own bundles.

Rules: a mirror is made whole or not at all. Commits that origin has dropped stay, at refs/byre/kept, for tasks may have started from
them. One fetch or clean-up at a time; clean-up never removes what is younger than `_GRACE`, because worktrees' private indexes hold
objects that no ref does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.core.errors import Invalid
from app.git import bundles, locks, projects, remotes
from app.git.bundles import Manifest
from app.git.rebuild import Part
from app.git.remotes import Remote
from app.git.repo import Repo
from app.git.run import Access
from app.git.view import Views

CLONE_SECONDS = 900.0
FULL_AFTER = 16  # Bundles of a chain after which the next should be a full one again.
_GRACE = "2.weeks.ago"
_ORIGIN = "refs/remotes/origin/"
_KEPT = "refs/byre/kept/"


def open_mirror(views: Views, path: Path) -> Repo:
    """The mirror at `path`, made (empty) if it isn't there."""
    if not (path / "HEAD").is_file():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=path.parent))
        views.git.run(None, "init", "--quiet", "--bare", "--initial-branch=byre/none", str(fresh))
        try:
            fresh.rename(path)
        except OSError:  # Another worker was first.
            shutil.rmtree(fresh)
    return Repo(views, path)


def refresh(mirror: Repo, origin: Remote, access: Access, *, seconds: float = projects.FETCH_SECONDS) -> None:
    """Brings a mirror up to date; branches that origin no longer has go. Raises Invalid, Unavailable, GitTimeout."""
    with _locked(mirror):
        before = set(_refs(mirror).values())
        projects.fetch(mirror, origin, access, prune=True, seconds=seconds)
        for commit in before - set(_refs(mirror).values()):
            if not mirror.run("for-each-ref", "--count=1", f"--contains={commit}", _ORIGIN, _KEPT).out:
                mirror.run("update-ref", _KEPT + commit, commit)


def save(mirror: Repo, file: Path, previous: Mapping[str, Any] | None) -> Manifest | None:
    """Writes what the mirror has beyond `previous` (manifest of the last bundle; None: everything) to `file`; None if nothing."""
    refs = _refs(mirror)
    if not refs:
        raise Invalid("the repository is empty: push a first commit", "repo_path")
    known = list(previous["refs"].values()) if previous else []
    if previous and refs == previous["refs"]:
        return None
    if all(
        commit in known for commit in refs.values()
    ):  # Branches went or moved back: no object is new, a bundle can't be empty.
        known = []
    about = bundles.write(mirror, file, refs, known)
    return {"refs": refs, **about}


def restore(views: Views, path: Path, parts: Sequence[Part]) -> Repo:
    """A mirror from its bundles in the store: a full one and those after it. Raises Corrupt, MissingBase, GitError."""
    mirror = open_mirror(views, path)
    with _locked(mirror):
        for part in parts:
            if part.file:
                bundles.apply(mirror, part.file, part.manifest, part.key)
        refs = {ref: remotes.object_id(oid, "refs") for ref, oid in parts[-1].manifest["refs"].items()}
        for ref in refs:
            remotes.branch(ref)
        lines = [f"update {ref} {oid}\n" for ref, oid in refs.items() if ref.startswith((_ORIGIN, _KEPT))]
        mirror.run("update-ref", "--stdin", input="".join(lines).encode())
    return mirror


def tidy(mirror: Repo) -> None:
    """Packs what is loose, and removes what nothing has referred to for two weeks, temporary packs too. Only for mirrors of ours."""
    with _locked(mirror):
        mirror.run("repack", "-d", "-l", "--quiet", seconds=bundles.PACK_SECONDS)
        mirror.run("pack-refs", "--all")
        mirror.run("prune", f"--expire={_GRACE}", seconds=bundles.PACK_SECONDS)


def remove(mirror: Repo) -> None:
    """Removes a mirror of a project that is gone."""
    shutil.rmtree(mirror.common, ignore_errors=True)
    mirror.views.forget(mirror.common)


def _refs(mirror: Repo) -> dict[str, str]:
    lines = mirror.run("for-each-ref", "--format=%(refname) %(objectname)", _ORIGIN, _KEPT).text.split("\n")
    return {ref: oid for ref, oid in (line.rsplit(" ", 1) for line in lines if line) if ref != f"{_ORIGIN}HEAD"}


@contextmanager
def _locked(mirror: Repo) -> Iterator[None]:
    with locks.held(mirror.views.git.private / "locks" / mirror.common.name, CLONE_SECONDS):
        yield
