"""`byre dev` with real processes: it serves, replaces what dies, starts after a power cut, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import processes
from tests.support.dev import BYRE, Stack, environment, running, until

KEYS = {
    "url", "management_token", "user_token", "tenant", "login", "redis_url", "object_store", "api_pid", "worker_pids", "redis_pid",
}  # fmt: skip


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(workers=2) as stack:
        yield stack


def alive(pid: int) -> bool:
    return processes.identify(pid) is not None


def changed(stack: Stack, pid: int) -> None:
    """Waits until the ready file no longer names `pid`, and what it names lives and serves."""

    def look() -> bool:
        stack.reread()
        return pid not in stack.pids and all(map(alive, stack.pids)) and stack.call("GET", "/readyz").status == 200

    until(f"a successor of {pid} is in the ready file", look)


def test_the_ready_file_says_all_that_is_needed_and_only_to_its_owner(stack: Stack) -> None:
    info = stack.info
    assert set(info) == KEYS
    assert len(set(stack.pids)) == 4
    assert all(map(alive, stack.pids))
    assert stack.ready_file.stat().st_mode & 0o777 == 0o600
    assert stack.call("GET", "/readyz").status == 200
    assert stack.call("GET", "/sessions").status == 200
    assert stack.call("GET", "/sessions", token=info["user_token"]).status == 200
    assert stack.call("GET", "/sessions", token="").status == 401


def test_secrets_are_private_and_not_printed(stack: Stack) -> None:
    key = (stack.state / "secret-key").read_text().strip()
    assert len(key) == 64
    for name in ("secret-key", "management.token", "user.token", "redis/redis.conf"):
        assert (stack.state / name).stat().st_mode & 0o077 == 0
    printed = stack.text()
    assert "curl" in printed
    for secret in (key, stack.info["management_token"], stack.info["user_token"]):
        assert secret not in printed


def test_children_lead_their_own_process_groups_and_may_open_many_files(stack: Stack) -> None:
    for pid in stack.pids:
        assert os.getpgid(pid) == pid
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        soft, hard = next(line for line in limits if line.startswith("Max open files")).split()[3:5]
        assert soft == hard


@pytest.mark.parametrize("kind", ["worker", "redis", "api"])
def test_a_killed_child_is_replaced_and_the_ready_file_says_so(stack: Stack, kind: str) -> None:
    stack.reread()
    before = {"worker": stack.info["worker_pids"][0], "redis": stack.info["redis_pid"], "api": stack.info["api_pid"]}[kind]
    others = [pid for pid in stack.pids if pid != before]
    os.kill(before, signal.SIGKILL)
    changed(stack, before)
    assert all(pid in stack.pids for pid in others), "only the one that died is replaced"
    assert stack.call("GET", "/sessions").status == 200


def test_a_second_one_on_the_same_directory_is_refused_with_one_line(stack: Stack) -> None:
    done = subprocess.run(
        [*BYRE, "dev", "--port", "0", "--data", str(stack.state)], env=stack.env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "another `byre dev` runs" in line
    assert "--data" in line
    assert stack.call("GET", "/readyz").status == 200


def test_a_server_process_dies_with_its_master(stack: Stack) -> None:
    stack.reread()
    master = stack.info["api_pid"]
    (server,) = [pid for pid in stack.processes() if parent(pid) == master]
    os.kill(master, signal.SIGKILL)
    until("the server process is gone", lambda: not alive(server), seconds=2)
    changed(stack, master)


def parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return None


def test_it_stops_in_time_with_a_turn_running_and_leaves_nothing() -> None:
    with running() as stack:
        session = stack.session()
        stack.say(session, "/orphan 60\n/say here\n/sleep 60")
        until(
            "the turn runs",
            lambda: any(event["type"] in ("assistant.message", "tool.result") for event in stack.events(session)),
        )
        began = time.monotonic()
        assert stack.stop() == 0
        assert time.monotonic() - began < 10
        assert stack.processes() == []
        assert not stack.ready_file.exists()
        assert not list(stack.state.rglob("*.sock"))
        lines = stack.text().splitlines()
        ends = [next(i for i, line in enumerate(lines) if mark in line) for mark in ("Shutting down: Master", "ready to exit")]
        assert ends == sorted(ends), "Redis goes last"


def test_after_a_power_cut_it_starts_at_once_on_the_same_directory() -> None:
    with running(workers=2) as stack:
        before, tokens = stack.pids, (stack.info["management_token"], stack.info["user_token"])
        stack.kill()
        stack.start()
        assert not set(before) & set(stack.pids)
        assert not any(map(alive, before))
        assert (stack.info["management_token"], stack.info["user_token"]) == tokens
        assert stack.call("GET", "/sessions").status == 200


def test_a_stopped_child_of_a_killed_one_does_not_hold_up_the_next_start() -> None:
    with running() as stack:
        os.kill(stack.info["redis_pid"], signal.SIGSTOP)
        os.kill(stack.process.pid, signal.SIGKILL)
        stack.process.wait(5)
        stack.start()
        assert stack.call("GET", "/readyz").status == 200


def test_redis_files_that_redis_refuses_are_put_aside() -> None:
    with running() as stack:
        stack.stop()
        (stack.state / "redis" / "appendonly.aof").write_bytes(b"*3\r\n$3\r\nSET\r\nrubbish, not the protocol\r\n" * 20)
        stack.start()
        assert list(stack.state.glob("redis/refused-0/appendonly*"))
        assert "put aside" in stack.text()
        assert stack.call("GET", "/readyz").status == 200


def test_a_path_too_long_for_a_socket_is_no_obstacle() -> None:
    with running(start=False) as stack:
        stack.state = stack.data / ("long-" * 30)
        stack.start()
        path = Path(stack.info["redis_url"].removeprefix("unix://"))
        assert path.is_socket()
        assert len(os.fsencode(path)) < 104
        assert path.parent.stat().st_mode & 0o077 == 0
        stack.stop()
        assert not path.parent.exists()


def test_a_port_in_use_is_one_line() -> None:
    with running(start=False) as stack, socket.create_server(("127.0.0.1", 0)) as taken:
        stack.launch("--port", str(taken.getsockname()[1]))
        assert stack.process.wait(20) == 4
        (line,) = stack.text().splitlines()
        assert "choose another with --port" in line


def test_a_bad_setting_is_one_line_and_starts_nothing() -> None:
    with running(start=False, env={"BYRE_LEASE_SECONDS": "soon"}) as stack:
        stack.launch()
        assert stack.process.wait(20) == 4
        (line,) = stack.text().splitlines()
        assert line.startswith("byre: BYRE_LEASE_SECONDS ")
        assert stack.processes() == []


@pytest.mark.parametrize("flags", [("--data", "file/data"), ("--data", "data", "--ready-file", "gone/ready.json")])
def test_a_directory_that_cannot_be_had_is_one_line(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run([*BYRE, "dev", *flags], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_killing_only_the_supervisor_takes_everything_with_it() -> None:
    with running() as stack:
        os.kill(stack.process.pid, signal.SIGKILL)
        stack.process.wait(5)
        with (stack.state / "lock").open() as lock:
            until("the lock is free", lambda: _locks(lock.fileno()), seconds=2)
        until("all is gone", lambda: not stack.processes(), seconds=5)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_without_git_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BYRE, "dev", "--data", str(tmp_path)],
        env=environment({"PATH": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (4, "byre: git is not on PATH: install it\n")


def test_an_app_directory_at_hand_a_misspelt_setting_and_json_logs() -> None:
    with running(start=False, env={"BYRE_LEASE_SECOND": "3", "BYRE_LOG_FORMAT": "json"}) as stack:
        (stack.data / "app").mkdir()
        (stack.data / "app" / "__init__.py").write_text("raise SystemExit('wrong package')")
        stack.start()
        stack.stop()
        lines = [json.loads(line) for line in stack.text().splitlines()]
        assert {line["process"] for line in lines} >= {"byre", "redis", "api"}
        assert any("did you mean BYRE_LEASE_SECONDS?" in line["event"] for line in lines)
