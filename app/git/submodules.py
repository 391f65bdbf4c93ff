"""Submodules of a new worktree, best effort and within a time.

`git submodule` isn't used: it takes addresses, names and commands from the repository. Each submodule is fetched by us from an address that
`remotes` allows, into the place where git looks for it (`modules` in the worktree's git directory), at the commit that the project names.

Rules: nothing here fails a task. What can't be had is a note. Submodules of submodules are left to the agent.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from posixpath import normpath

from app.core.errors import ByreError, Invalid
from app.git import paths, remotes
from app.git.index import PrivateIndex
from app.git.remotes import Remote
from app.git.repo import Repo, Worktree
from app.git.run import Access

SECONDS = 60.0
_MOST = 100
_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+ -]*(?:/[A-Za-z0-9_+][A-Za-z0-9._+ -]*)*\Z")

AccessFor = Callable[[Remote], AbstractContextManager[Access]]


def fill(
    worktree: Worktree, origin: Remote | None, roots: Sequence[Path], access_for: AccessFor, seconds: float = SECONDS
) -> list[str]:
    """Fetches and checks out the submodules of a new worktree. Gives notes about those that aren't there."""
    end = time.monotonic() + seconds
    links = _links(worktree)
    if not links:
        return []
    declared = _declared(worktree)
    notes = []
    for path, commit in list(links.items())[:_MOST]:
        shown = paths.show(path)
        try:
            name, address = declared[path]
            remote = _remote(address, origin, roots)
            left = end - time.monotonic()
            if left <= 0:
                raise Invalid("there was no time left")
            _fill(worktree, path, name, commit, remote, access_for, left)
        except KeyError:
            notes.append(f"submodule {shown} is left out: .gitmodules doesn't name it")
        except (ByreError, OSError) as error:
            notes.append(f"submodule {shown} is left out: {error}")
    if len(links) > _MOST:
        notes.append(f"only {_MOST} submodules were looked at")
    return notes


def _links(worktree: Worktree) -> dict[bytes, str]:
    """Path and commit of each submodule in the worktree's index."""
    known = PrivateIndex(worktree).links()
    if not known:
        return {}
    out = worktree.run("ls-files", "--stage", "-z", "--", *(os.fsdecode(path) for path in known[: 10 * _MOST])).out
    entries = [entry.split(b"\t", 1) for entry in out.split(b"\0") if entry.startswith(b"160000 ")]
    return {path: about.split(b" ")[1].decode() for about, path in entries}


def _declared(worktree: Worktree) -> dict[bytes, tuple[str, str]]:
    """Name and address of each path in .gitmodules."""
    done = worktree.run("config", "--blob", "HEAD:.gitmodules", "--list", "-z", ok=(), limit=2**20)
    fields: dict[str, dict[str, str]] = {}
    for entry in done.out.split(b"\0") if done.status == 0 else []:
        key, _, value = os.fsdecode(entry).partition("\n")
        parts = key.split(".", 1)
        if len(parts) == 2 and parts[0] == "submodule" and "." in parts[1]:
            name, _, what = parts[1].rpartition(".")
            fields.setdefault(name, {})[what] = value
    return {
        os.fsencode(about["path"]): (name, about["url"]) for name, about in fields.items() if {"path", "url"} <= about.keys()
    }


def _remote(address: str, origin: Remote | None, roots: Sequence[Path]) -> Remote:
    if address.startswith(("./", "../")):
        if origin is None:
            raise Invalid("its address is relative, and the project has no origin")
        prefix, _, path = (
            origin.url.rpartition(":") if origin.kind == "ssh" and "://" not in origin.url else ("", "", origin.url)
        )
        scheme, _, rest = path.rpartition("://")
        joined = normpath(f"{rest}/{address}")
        if joined.startswith(".."):
            raise Invalid("its address leads out of origin's")
        address = (f"{prefix}:" if prefix else "") + (f"{scheme}://" if scheme else "") + joined
    return remotes.remote(address, roots, "url", strip=True)


def _fill(
    worktree: Worktree, path: bytes, name: str, commit: str, remote: Remote, access_for: AccessFor, seconds: float
) -> None:
    if not _NAME.match(name) or any(part in (".", "..") for part in name.split("/")):
        raise Invalid("its name is not one for a directory")
    place = worktree.path
    for part in os.fsdecode(path).split("/"):
        place = place / part
        if place.is_symlink() or not place.is_dir():
            raise Invalid("its place is not a directory")
    if any(place.iterdir()):
        raise Invalid("its place is not empty")
    git_dir = worktree.git_dir / "modules" / name
    views = worktree.repo.views
    git = views.git
    above = [parent for parent in git_dir.parents if parent.is_relative_to(worktree.git_dir / "modules")]
    if git_dir.exists() or any((parent / "HEAD").exists() for parent in above):
        raise Invalid("its name is taken")
    git_dir.mkdir(parents=True)
    git.run(None, "init", "--quiet", "--bare", str(git_dir))
    repo = Repo(views, git_dir)
    options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
    with access_for(remote) as access:
        repo.run("fetch", *options, "--", remote.url, "+refs/heads/*:refs/remotes/origin/*", access=access, seconds=seconds)
        if not repo.exists(commit):
            repo.run("fetch", *options, "--", remote.url, commit, access=access, seconds=seconds)
    for key, value in (
        ("core.bare", "false"),
        ("core.worktree", os.path.relpath(place, git_dir)),
        ("remote.origin.url", remote.url),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
    ):
        git.run(None, "config", "--file", str(git_dir / "config"), key, value)
    (git_dir / "HEAD").write_text(f"{commit}\n")
    (place / ".git").write_text(f"gitdir: {os.path.relpath(git_dir, place)}\n")
    view = views.of(git_dir, work_tree=place, index=git_dir / "index")
    git.run(view, "read-tree", "-m", "-u", commit, seconds=seconds)
