"""What the tests with real agents read: events, and processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.support.client import until
from tests.support.dev import Stack

Events = list[dict[str, Any]]


def texts(events: Events) -> list[str]:
    """What the assistant said."""
    return [event["data"]["text"] for event in events if event["type"] == "assistant.message"]


def kinds(events: Events) -> list[str]:
    """The types."""
    return [event["type"] for event in events]


def results(events: Events) -> list[str]:
    """The first text of each tool's result."""
    return [event["data"]["result"]["content"][0]["text"] for event in events if event["type"] == "tool.result"]


def descendants(session_id: str) -> list[str]:
    """Command lines of processes that belong to a session's agent, by the directory or the variables that they have."""
    found = []
    mark = session_id.encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes() or mark in os.fsencode((path / "cwd").readlink()):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def environments(session_id: str) -> list[dict[str, str]]:
    """The variables of those processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            raw = (path / "environ").read_bytes()
        except OSError:
            continue
        if session_id.encode() in raw:
            found.append(dict(line.split("=", 1) for line in raw.decode().split("\0") if "=" in line))
    return found


def kill_workers(stack: Stack) -> None:
    """Kills every worker; `byre dev` starts others."""

    def killed() -> bool:
        pids = stack.reread()["worker_pids"]
        if not all(Path(f"/proc/{pid}").exists() for pid in pids):
            return False  # one of them was killed just before, and its successor isn't told of yet
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return True

    until("the workers are killed", killed)
