"""The data directory of `byre dev`: who may use it, what is left in it from a life before, its secrets and the ready file.

Rules: one `byre dev` at a time works on a directory (a kernel lock, which ends with the process). Secrets are made once and are
readable by their owner only. Files that others read are replaced in one step.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app import processes
from app.processes import Process
from app.settings import SettingsError

PATIENCE = 5.0
"""Seconds that a start waits for a `byre dev` that was just killed."""


class DataDirectory:
    """The directory, locked. Raises SettingsError if it can't be made or another `byre dev` uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(
                f"the data directory {path} can't be used: {error.strerror}; choose another with --data"
            ) from error
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SettingsError(
                        f"another `byre dev` runs on {path}: stop it, or choose another directory with --data"
                    ) from None
                time.sleep(0.05)

    def end_previous_life(self) -> None:
        """Kills children of an earlier `byre dev` on this directory that still live. Raises SettingsError if one doesn't die."""
        try:
            recorded = [Process(int(pid), int(started)) for pid, started in json.loads(self._file("children.json").read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            return  # none, or half of a record: the kernel has killed them with their parent all the same
        left = processes.kill_and_wait(recorded, PATIENCE)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise SettingsError(f"processes of an earlier `byre dev` on {self.path} can't be killed: {pids}")

    def record_children(self, pids: Iterable[int]) -> None:
        """Remembers who must be gone before the next start."""
        replace(self._file("children.json"), json.dumps([p for pid in pids if (p := processes.identify(pid))]))

    def secret_key(self) -> str:
        """The deployment's secret, made at the first call."""
        path = self._file("secret-key")
        key = self.secret("secret-key")
        if key is None:
            key = secrets.token_hex(32)
            self.keep_secret(path.name, key)
        return key

    def secret(self, name: str) -> str | None:
        """The text of a secret file, None if there is none."""
        try:
            return self._file(name).read_text().strip() or None
        except FileNotFoundError:
            return None

    def keep_secret(self, name: str, text: str) -> Path:
        """Writes a secret file; returns its path."""
        path = self._file(name)
        replace(path, text + "\n")
        return path

    def close(self) -> None:
        """Lets others use the directory."""
        os.close(self._lock)

    def _file(self, name: str) -> Path:
        return self.path / name


def replace(path: Path, text: str) -> None:
    """Writes `path` so that a reader sees the old text or the new, whole; only the owner may read it."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


def deployment(path: Path) -> dict[str, str]:
    """The variables by which a command reaches the deployment of the `byre dev` on `path`, running or not; {} if there is none."""
    ready = read_ready(path / "ready.json") or {}
    store = ready.get("object_store") or ("file://" + quote(str(path / "store")) if (path / "store").is_dir() else "")
    if not store:
        return {}
    key = path / "secret-key"
    found = {
        "BYRE_OBJECT_STORE": store,
        "BYRE_REDIS_URL": ready.get("redis_url", ""),
        "BYRE_SECRET_KEY": key.read_text().strip() if key.is_file() else "",
        "BYRE_VENDOR": "script",
    }
    return {name: value for name, value in found.items() if value}


def write_ready(path: Path, document: dict[str, Any]) -> None:
    """The ready file: who serves, and how to reach and call it. Holds tokens, so it is the owner's only."""
    replace(path, json.dumps(document, indent=2) + "\n")


def read_ready(path: Path) -> dict[str, Any] | None:
    """What a running `byre dev` wrote there, None if there is nothing to be read."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
