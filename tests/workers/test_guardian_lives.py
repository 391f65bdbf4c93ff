"""A worker that dies or is stopped takes its trees along; what still survives is found by the next life. Rows B1, B2, D1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.workers.procs import ENV, living, tag, until
from workers import lives, proctree
from workers.process import Guardian, kill_leftovers

HERE = Path(__file__).parent
TREE = "(env -i setsid sh -c 'sleep TAG & sleep TAG' &); setsid sleep TAG & sleep TAG; true"
COUNT = 6


class Lone(NamedTuple):
    process: subprocess.Popen[str]
    guardian: int
    keeper: int
    leader: int
    deadline: float


def lone_worker(state: Path, command: str, seconds: str = "-") -> Lone:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "lone_worker.py"), str(state), command, seconds],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENV, "PYTHONPATH": str(HERE.parent.parent)},
        start_new_session=True,
    )
    assert process.stdout is not None
    guardian, keeper, leader, deadline = process.stdout.readline().split()
    return Lone(process, int(guardian), int(keeper), int(leader), float(deadline))


def bury(worker: Lone) -> None:
    worker.process.kill()
    worker.process.communicate()


@pytest.mark.parametrize("to_the_group", [False, True])
def test_killed_worker_takes_its_tree_along(tmp_path: Path, to_the_group: bool) -> None:
    name = tag()
    worker = lone_worker(tmp_path, TREE.replace("TAG", name))
    until(lambda: len(living(name)) >= COUNT)
    if to_the_group:
        os.killpg(worker.process.pid, signal.SIGKILL)
    else:
        worker.process.kill()
    until(lambda: not [pid for pid in living(name) if pid != worker.process.pid], 2.0)
    worker.process.communicate()
    until(lambda: not proctree.look(worker.guardian), 2.0)
    assert list(tmp_path.iterdir()) == []


def test_stopped_worker_loses_its_tree_at_the_deadline(tmp_path: Path) -> None:
    name = tag()
    worker = lone_worker(tmp_path, TREE.replace("TAG", name), "1.5")
    try:
        until(lambda: len(living(name)) >= COUNT)
        os.kill(worker.process.pid, signal.SIGSTOP)
        assert time.monotonic() < worker.deadline
        until(lambda: [pid for pid in living(name) if pid != worker.process.pid] == [], 5.0)
        assert time.monotonic() < worker.deadline + 0.5
        os.kill(worker.process.pid, signal.SIGCONT)
        assert worker.process.stdout is not None
        assert worker.process.stdout.readline() == "deadline\n"
    finally:
        bury(worker)


def test_next_life_kills_what_outlived_all_guards(tmp_path: Path) -> None:
    name, bystander_name = tag(), tag()
    command = TREE.replace("env -i ", "").replace("TAG", name)
    worker = lone_worker(tmp_path, command)
    bystander = subprocess.Popen(["sleep", bystander_name])
    try:
        until(lambda: len(living(name)) >= COUNT)
        for pid in (worker.guardian, worker.keeper, worker.process.pid):  # stopped first: none may do its work
            os.kill(pid, signal.SIGSTOP)
        for pid in (worker.guardian, worker.keeper, worker.process.pid):
            os.kill(pid, signal.SIGKILL)
        worker.process.communicate()
        until(lambda: worker.leader not in living(name))  # by PDEATHSIG
        assert living(name), "nothing was left to find"
        assert kill_leftovers(tmp_path) >= 3
        assert living(name) == [] and list(tmp_path.iterdir()) == []
        assert bystander.poll() is None
        assert kill_leftovers(tmp_path) == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_life_of_a_living_worker_is_left_alone(tmp_path: Path, guardian: Guardian) -> None:
    name = tag()
    child = guardian.spawn(["sleep", name], env=ENV, cwd=Path("/"))
    assert kill_leftovers(tmp_path / "state") == 0
    assert child.wait(0) is None and len(living(name)) == 1


def test_recorded_pid_with_another_start_time_is_spared(tmp_path: Path) -> None:
    """A dead life whose record names a pid that another process has by now."""
    bystander = subprocess.Popen(["sleep", tag()], start_new_session=True)
    dead = subprocess.Popen(["true"])
    try:
        life = Path(lives.begin(tmp_path, "old", dead.pid))
        dead.wait()
        seen = proctree.look(bystander.pid)
        assert seen is not None
        (life / "marker-of-old").write_text(
            f"leader={bystander.pid} {seen.start - 1}\nkeeper={bystander.pid} {seen.start + 1}\n"
        )
        assert kill_leftovers(tmp_path) == 0
        assert bystander.poll() is None and list(tmp_path.iterdir()) == []

        life = Path(lives.begin(tmp_path, "older", os.getpid()))
        owner = (life / "owner").read_text()
        (life / "owner").write_text(owner.replace(f"worker={os.getpid()} ", f"worker={os.getpid()} 1"))
        (life / "marker-of-old").write_text(f"leader={bystander.pid} {seen.start}\n")
        assert kill_leftovers(tmp_path) == 1
        assert bystander.wait(5) == -9
    finally:
        bystander.kill()
        bystander.wait()


def test_lives_of_another_boot_or_container(tmp_path: Path) -> None:
    """After a reboot the records are only removed; those of another pid namespace of this boot stay."""
    bystander = subprocess.Popen(["sleep", tag()], start_new_session=True)
    try:
        seen = proctree.look(bystander.pid)
        assert seen is not None
        boot, inode = proctree.namespace().split("/")
        for life, space in (("life-a", f"other-boot/{inode}"), ("life-b", f"{boot}/1")):
            (tmp_path / life).mkdir()
            (tmp_path / life / "owner").write_text(f"space={space}\nworker=1 1\n")
            (tmp_path / life / "marker-m").write_text(f"leader={bystander.pid} {seen.start}\n")
        assert kill_leftovers(tmp_path) == 0
        assert [entry.name for entry in tmp_path.iterdir()] == ["life-b"]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
