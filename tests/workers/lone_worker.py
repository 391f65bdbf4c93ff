"""A worker of its own, to be killed or stopped by a test: starts the given shell command under a guardian and says its pids.

Arguments: state directory, shell command, seconds until its deadline ("-": none).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.workers.procs import ENV
from workers.process import Guardian

if __name__ == "__main__":
    state, command, seconds = sys.argv[1:4]
    guardian = Guardian.start(Path(state))
    deadline = None if seconds == "-" else time.monotonic() + float(seconds)
    child = guardian.spawn(["sh", "-c", command], env=ENV, cwd=Path("/"), deadline=deadline)
    print(guardian.pid, child.keeper_pid, child.pid, deadline or 0, flush=True)
    child.wait()
    print(child.cause, flush=True)
    sys.stdin.read()
