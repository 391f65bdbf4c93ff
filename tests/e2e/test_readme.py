"""A stranger follows the README: its commands, as they stand there, against a running `byre dev`; and what that shows is documented."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.dev import BYRE, ROOT, Stack, running, until


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running() as stack:
        yield stack


def commands(title: str = "First session") -> list[str]:
    section = (ROOT / "README.md").read_text().split(f"## {title}")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.S)


def shell(stack: Stack, script: str) -> str:
    """Runs README commands with this stack's address and data directory in place of the defaults."""
    script = script.replace("http://127.0.0.1:8080", stack.info["url"]).replace("~/.local/share/byre", str(stack.state))
    for home in ("~", "$HOME"):
        script = script.replace(f"{home}/byre-demo", str(stack.data / "demo"))
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_readme_work_as_they_stand(stack: Stack) -> None:
    setting, create, send, read, follow = commands()
    sent = json.loads(shell(stack, setting + create + 'echo "$SESSION" >&2\n' + send))
    assert sent["type"] == "user.message"
    session = stack.call("GET", "/sessions").json["sessions"][-1]["id"]
    until("the turn ends", lambda: any(event["type"] == "turn.completed" for event in stack.events(session)))
    page, state = (
        json.loads(line)
        for line in shell(stack, f"{setting}SESSION={session}\n{read.replace(chr(10), '; echo' + chr(10))}").splitlines()
    )
    assert [event["data"]["text"] for event in page["events"] if event["type"] == "assistant.message"] == ["hello"]
    assert state["status"] == "idle"
    streamed = shell(stack, f"{setting}SESSION={session}\n" + follow.strip() + " --max-time 3 || true")
    assert "event: turn.completed" in streamed


def test_a_task_as_the_readme_has_it(stack: Stack) -> None:
    prepare, create, look, merge = commands("First task")
    setting = commands()[0]
    ids = shell(stack, setting + prepare + create + 'echo; echo "$TASK $AGENT"').split("\n")[-2]
    task, agent = ids.split()
    user = str(stack.info["user_token"])
    until("the agent is idle", lambda: stack.call("GET", f"/api/sessions/{agent}", token=user).json["state"] == "idle")
    known = setting + "".join(prepare.splitlines(keepends=True)[2:5]) + f"TASK={task}; AGENT={agent}\n"
    looked = shell(stack, known + look)
    assert '"path":"hello.txt"' in looked and "It is written." in looked
    shell(stack, known + merge)
    until("it is merged", lambda: stack.call("GET", f"/api/tasks/{task}", token=user).json["status"] == "merged")
    assert "hello.txt" in shell(stack, known + merge.splitlines()[-1])


def test_sending_the_same_key_again_runs_nothing_twice(stack: Stack) -> None:
    session = stack.session()
    first = stack.say(session, "/say once", key="k")
    assert stack.say(session, "/say once", key="k")["id"] == first["id"]


def test_what_byre_dev_suggests_is_what_the_readme_says(stack: Stack) -> None:
    printed = stack.text()
    assert f"TOKEN=$(cat {stack.state}/management.token)" in printed
    assert printed.count("curl -s") == 3


def test_tail_shows_a_session_and_ends_when_it_is_closed(stack: Stack) -> None:
    session = stack.session()
    stack.turn(session, "/stream 3 5 one two three\n/write a.txt x\n/run cat a.txt\n/fail for a reason")
    stack.call("POST", f"/sessions/{session}/resume")
    assert stack.call("POST", f"/sessions/{session}/close").status == 202
    done = subprocess.run(
        [*BYRE, "tail", session, "--data", str(stack.state)], env=stack.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "> /stream 3 5 one two three",
        "one two three",
        "→ write_file",
        "turn.failed: for a reason",
        "session.closed",
    ):
        assert expected in done.stdout, done.stdout
    assert "\x1b" not in done.stdout


def test_tail_of_no_session_is_one_line(stack: Stack) -> None:
    done = subprocess.run(
        [*BYRE, "tail", "0" * 32, "--data", str(stack.state)], env=stack.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_every_metric_that_is_served_is_documented(stack: Stack) -> None:
    served = set(re.findall(r"^# TYPE (\S+)", stack.call("GET", "/metrics").body.decode(), re.M))
    documented = set(re.findall(r"`((?:byre|python)_[a-z_]+)`", (ROOT / "docs" / "operations.md").read_text()))
    assert {name for name in served if not name.endswith("_created")} == documented


def test_live_streams_end_by_themselves_when_it_stops() -> None:
    with running() as stack:
        session = stack.session()
        frames = stack.stream(f"/sessions/{session}/events")
        assert "retry" in next(frames)
        stack.process.terminate()
        rest = list(frames)  # ends without an error: the server has closed the answer properly
        assert any("retry" in frame for frame in rest), rest
        assert stack.process.wait(10) == 0
        assert "were cut" not in stack.text()
