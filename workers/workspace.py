"""Where a session's harness lives on this host, and moving its native state between here and the store.

A session without a task has a directory with `home` (the harness's HOME, its native state in it) and `work` (the scratch directory that it
works in). Both belong to its checkpoints: `work` as a whole up to `SCRATCH_BYTES`, of `home` what the adapter calls native state.

Rules: a harness starts only in directories that were made from the state's checkpoint just now; what another life left there is
removed first. Directories belong to one lease (`owner`): a worker that slept through the end of its lease and cleans up when it wakes
must not take those of its successor, which have the same path. The path is the same on every worker with the same BYRE_WORKSPACES,
since harnesses key their own state by it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from app.core.errors import Fenced
from app.core.session import Checkpoint
from app.git import locks
from app.store.cipher import Cipher
from app.store.contract import Store
from app.store.keys import LogName
from workers import checkpoint
from workers.harness.base import Place
from workers.host import Host

SCRATCH_BYTES = 256 * 2**20
OWNER = "owner"
"""File that names the lease that a session's directories belong to."""


class ScratchTooLarge(Exception):
    """The scratch directory holds more than a checkpoint may."""


class Workspaces:
    """All session directories of one worker, under `root`."""

    def __init__(self, root: Path, store: Store, cipher: Cipher) -> None:
        self._root, self._store, self._cipher = root / "sessions", store, cipher
        self._latest: dict[str, Mapping[str, Any]] = {}

    def directory(self, name: LogName) -> Path:
        """The directory of a session."""
        assert name.session
        return self._root / name.tenant / name.session

    def materialise(self, name: LogName, latest: Checkpoint | None, owner: str) -> Place:
        """Makes the directories from the latest checkpoint (None: empty) for the lease `owner`.

        Raises Corrupt, Missing, Unavailable, OSError.
        """
        assert name.session
        base = self.directory(name)
        with self._locked(name):
            if base.exists():
                shutil.rmtree(base)
            base.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if latest:
                self._latest[owner] = checkpoint.restore(
                    self._store, name.tenant, name.session, latest.id, base, cipher=self._cipher
                )
            for part in ("home", "work"):
                (base / part).mkdir(parents=True, exist_ok=True, mode=0o700)
            (base / OWNER).write_text(owner)
        return Place(home=base / "home", cwd=base / "work", session_id=name.session, fresh=latest is None, tenant=name.tenant)

    def save(self, name: LogName, host: Host, meta: dict[str, Any], owner: str) -> str:
        """Uploads native state and scratch files; gives the checkpoint's id.

        Raises Fenced if the directories are another lease's by now, ScratchTooLarge, Unavailable, OSError.
        """
        assert name.session
        base = self.directory(name)
        self._check(base, owner)
        files = [(str(path.relative_to(base)), path) for path in host.native_files()]
        files += self._scratch(base)
        manifest = checkpoint.save(
            self._store,
            name.tenant,
            name.session,
            files,
            cipher=self._cipher,
            meta=meta,
            previous=self._latest.get(owner),
            within=base,
        )
        # what was read is the owner's only if it still was at the end
        self._check(base, owner)
        self._latest[owner] = manifest
        return str(manifest["id"])

    def remove(self, name: LogName, owner: str) -> None:
        """Removes the directories of a session whose harness is dead, unless they are another lease's by now."""
        self._latest.pop(owner, None)
        base = self.directory(name)
        with self._locked(name):
            if _owner(base) == owner:
                shutil.rmtree(base)

    def _locked(self, name: LogName) -> AbstractContextManager[None]:
        """One change of a session's directories at a time, among all workers of this disk."""
        number = hashlib.sha256(name.text.encode()).hexdigest()[:2]
        folder = self._root / "locks"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return locks.held(folder / number)

    def _check(self, base: Path, owner: str) -> None:
        if _owner(base) != owner:
            raise Fenced("the session's directories are another lease's")

    def _scratch(self, base: Path) -> list[tuple[str, Path]]:
        found: list[tuple[str, Path]] = []
        total = 0
        for path in sorted((base / "work").rglob("*")):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
                if total > SCRATCH_BYTES:
                    raise ScratchTooLarge(f"the session's files take more than {SCRATCH_BYTES >> 20} MiB")
                found.append((str(path.relative_to(base)), path))
        return found


def _owner(base: Path) -> str | None:
    try:
        return (base / OWNER).read_text()
    except FileNotFoundError:
        return None
