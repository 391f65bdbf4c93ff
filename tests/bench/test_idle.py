"""CPU time of a `byre dev` that nobody uses, by process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.client import until
from tests.support.deployment import owned
from tests.support.dev import Stack, running

pytestmark = pytest.mark.bench
SECONDS = 60.0


def cpu(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def names(stack: Stack) -> dict[str, int]:
    """What each process of the stack is."""
    api = stack.info["api_pid"]
    found = {
        "dev": stack.process.pid,
        "api master": api,
        "worker": stack.info["worker_pids"][0],
        "redis": stack.info["redis_pid"],
    }
    found["api server"] = int(Path(f"/proc/{api}/task/{api}/children").read_text().split()[0])
    found["guardian"] = int(Path(f"/proc/{found['worker']}/task/{found['worker']}/children").read_text().split()[0])
    return found


def test_an_idle_stack_uses_no_cpu_to_speak_of() -> None:
    with running(env={"BYRE_WARM_SECONDS": "1"}) as stack:
        for _ in range(20):
            stack.turn(stack.session(), "/say hello")
        processes = names(stack)
        until("no agent is kept", lambda: len(owned(stack.data)) <= len(processes))
        before = {name: cpu(pid) for name, pid in processes.items()}
        time.sleep(SECONDS)  # what is measured
        used = {name: cpu(pid) - before[name] for name, pid in processes.items()}
    print("\nCPU seconds a minute: " + ", ".join(f"{name} {value:.2f}" for name, value in used.items()))
    assert sum(used.values()) < 2.0
