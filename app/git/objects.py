"""Reading single commits without starting git.

dulwich opens the object directory itself: a commit's tree and parents cost a millisecond instead of a process. tests/compat holds its
answers against git's. What it can't read (a broken pack, a format that it doesn't know), git is asked for.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from dulwich.object_store import DiskObjectStore
from dulwich.objects import Commit, ObjectID


class Links(NamedTuple):
    """What a commit points at."""

    tree: str
    parents: tuple[str, ...]


def links(common: Path, commit: str) -> Links | None:
    """Tree and parents of a commit of a repository; None if it isn't there, is no commit, or can't be read this way."""
    try:
        with closing(DiskObjectStore(str(common / "objects"))) as store:
            found = store[ObjectID(commit.encode())]
    except Exception:  # noqa: BLE001 - a hostile repository makes dulwich raise anything; git decides then
        return None
    if not isinstance(found, Commit):
        return None
    return Links(found.tree.decode(), tuple(parent.decode() for parent in found.parents))
