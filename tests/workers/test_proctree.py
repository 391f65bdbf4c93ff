"""Looking at /proc: names that confuse, exact signals, and kernels without the list of children."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.workers.procs import ENV, living, tag, until
from workers import proctree


def test_a_name_with_blanks_and_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), tag()], start_new_session=True)
    try:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "a) R 1 (b\n")
        seen = proctree.look(process.pid)
        assert seen and (seen.ppid, seen.pgid, seen.sid) == (os.getpid(), process.pid, process.pid) and seen.alive
    finally:
        process.kill()
    until(lambda: (look := proctree.look(process.pid)) and not look.alive)
    process.wait()
    assert proctree.look(process.pid) is None


def test_strike_hits_the_very_process_only() -> None:
    process = subprocess.Popen(["sleep", tag()])
    try:
        seen = proctree.look(process.pid)
        assert seen
        seen.start -= 1
        assert not proctree.strike(seen) and process.poll() is None
        seen.start += 1
        assert proctree.strike(seen, signal.SIGTERM) and process.wait(5) == -signal.SIGTERM
        assert not proctree.strike(seen)
    finally:
        process.kill()


def test_marker_is_the_whole_value() -> None:
    process = subprocess.Popen(["sleep", tag()], env={**ENV, proctree.MARKER: "marker-12"})
    try:
        until(lambda: proctree.carries(process.pid, "marker-12"))
        assert not proctree.carries(process.pid, "marker-1")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("listed", [True, False])
def test_everything_below_but_what_is_spared(monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    if not listed:
        monkeypatch.setattr(proctree, "children", lambda pid: None)
    doomed, spared = tag(), tag()
    shell = (
        f"sh -c 'setsid sleep {doomed} & sleep {doomed}; true' & sh -c 'echo $$; sleep {spared}; true' & while :; do wait; done"
    )
    root = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert root.stdout is not None
        keep = {int(root.stdout.readline())}
        until(lambda: len(living(f"sleep\0{doomed}")) == 2 and len(living(f"sleep\0{spared}")) == 1)
        assert not proctree.is_bare(root.pid, keep)

        def cleared() -> bool:
            proctree.kill_below(root.pid, keep)
            return proctree.is_bare(root.pid, keep)

        until(cleared)
        assert living(f"sh\0-c\0setsid sleep {doomed}") == [] and living(f"sleep\0{spared}")
        assert not proctree.is_bare(root.pid)
    finally:
        os.killpg(root.pid, signal.SIGKILL)
        for pid in living(doomed):
            os.kill(pid, signal.SIGKILL)
        root.communicate()
