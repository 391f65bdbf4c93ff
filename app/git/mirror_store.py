"""Mirrors and the store: a mirror is saved after each fetch, and made from its bundles where there is none.

Rules: what a task starts from is in the store before the task is there. A mirror remembers in a file of its own up to which bundle it has
everything (`_MARK`). Of two hosts that save at once one goes again on what the other has saved.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from app.core.errors import Unavailable
from app.git import bundles, mirrors
from app.git.repo import Repo
from app.git.run import write_once
from app.git.vault import Outrun, Vault
from app.git.view import Views

_MARK = "byre-bundles"
_TRIES = 4


def save(mirror: Repo, vault: Vault, host: str, run: str) -> None:
    """Puts what the store doesn't have of origin's branches into it. `run` names the trash for what a full bundle replaces.

    Raises Invalid for an empty repository, Unavailable, GitError.
    """
    for _ in range(_TRIES):
        latest = vault.latest()
        full = latest is None or latest["seq"] - latest["start"] >= mirrors.FULL_AFTER
        with tempfile.TemporaryDirectory(prefix="mirror-", dir=mirror.views.git.private) as place:
            file = Path(place) / "bundle"
            manifest = mirrors.save(mirror, file, None if full else latest)
            if manifest is None:
                return
            seq = latest["seq"] + 1 if latest else 1
            start = latest["start"] if latest and not full else seq
            try:
                stored = vault.add(seq, manifest, file, start=start, host=host)
            except Outrun:
                continue
        if mark(mirror) == seq - 1 or full:
            _set_mark(mirror, seq)
        if full and latest:
            vault.confirm([stored])
            vault.drop_before(seq, run)
        return
    raise Unavailable("the mirror of this project is being saved by others; try again")


def restore(views: Views, path: Path, vault: Vault) -> Repo | None:
    """The mirror at `path`, made from its bundles; None if there are none. Raises Corrupt, Unavailable, GitError."""
    chain = vault.chain()
    if not chain:
        return None
    with vault.files(chain) as parts:
        mirror = mirrors.restore(views, path, parts)
    _set_mark(mirror, chain[-1]["seq"])
    return mirror


def catch_up(mirror: Repo, vault: Vault) -> None:
    """Puts the objects of bundles that others have saved into the mirror; its refs stay. Raises Corrupt, Unavailable, GitError."""
    known = mark(mirror)
    chain = [manifest for manifest in vault.chain() if manifest["seq"] > known]
    if not chain:
        return
    with vault.files(chain) as parts:
        for part in parts:
            assert part.file
            bundles.apply(mirror, part.file, part.manifest, part.key)
    _set_mark(mirror, chain[-1]["seq"])


def mark(mirror: Repo) -> int:
    """The number of the bundle up to which the mirror has everything."""
    with contextlib.suppress(OSError, ValueError):
        return int((mirror.common / _MARK).read_text())
    return 0


def _set_mark(mirror: Repo, seq: int) -> None:
    write_once(mirror.common / _MARK, str(seq))
