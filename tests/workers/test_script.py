"""The script harness plays its vocabulary, each line as docs/harness-script.md says."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.agents import Agent, Heard
from tests.workers.procs import living, tag, until
from workers.harness.base import (
    Delta,
    Done,
    Failed,
    Image,
    Input,
    Interrupted,
    Message,
    ProtocolError,
    RateLimited,
    Steered,
    ToolCall,
    ToolResult,
)
from workers.process import Guardian, Limits


@pytest.fixture
def agent(guardian: Guardian, tmp_path: Path) -> Iterator[Agent]:
    made = Agent(guardian, tmp_path)
    yield made
    made.child.kill()


def said(heard: list[Heard]) -> list[str]:
    return [output.text for output in heard if isinstance(output, Message)]


def outcome(heard: list[Heard]) -> tuple[str, bool]:
    """Text and error flag of the only tool result."""
    (result,) = [output.result for output in heard if isinstance(output, ToolResult)]
    (content,) = result["content"]
    assert content["type"] == "text" and set(result) <= {"content", "is_error"}
    return content["text"], result.get("is_error", False)


def test_say_and_anything_else(agent: Agent) -> None:
    heard = agent.turn("/say hello  there\nwhat now\n\n/bogus x\r\n/say\n/emit many")
    assert said(heard) == ["hello  there", "You said: what now", "You said: /bogus x", "You said: /say", "You said: /emit many"]
    assert heard[-1] == Done({"input_tokens": 10, "output_tokens": 17}, None, "You said: /emit many")


def test_stream(agent: Agent) -> None:
    start = time.monotonic()
    heard = agent.turn("/stream 4 50 ab cde€")
    assert [output.text for output in heard if isinstance(output, Delta)] == ["a", "b ", "cd", "e€"]
    assert said(heard) == ["ab cde€"] and time.monotonic() - start >= 0.15
    deltas = [output.text for output in agent.turn("/stream 7 0 abc") if isinstance(output, Delta)]
    assert len(deltas) == 7 and "".join(deltas) == "abc"


def test_write(agent: Agent, tmp_path: Path) -> None:
    heard = agent.turn("/write deep/er/ü.txt a\\nb c")
    assert isinstance(heard[0], ToolCall) and heard[0].name == "write_file"
    assert heard[0].arguments == {"path": "deep/er/ü.txt", "text": "a\nb c"}
    assert outcome(heard) == ("Wrote 5 bytes to deep/er/ü.txt", False)
    assert (tmp_path / "work/deep/er/ü.txt").read_bytes() == b"a\nb c"


def test_write_stays_in_the_workspace(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "work/out").symlink_to(tmp_path)
    for path in ("../x", "/etc/x", "out/x", "."):
        assert outcome(agent.turn(f"/write {path} text"))[1]
    assert not (tmp_path / "x").exists()


def test_run(agent: Agent, tmp_path: Path) -> None:
    heard = agent.turn("/run pwd; echo no >&2; printf end; exit 3")
    assert isinstance(heard[0], ToolCall) and heard[0].name == "shell"
    assert heard[0].arguments == {"command": "pwd; echo no >&2; printf end; exit 3"}
    assert outcome(heard) == (f"{tmp_path / 'work'}\nno\nend\n[exit status 3]", True)
    assert outcome(agent.turn("/run true")) == ("[exit status 0]", False)
    assert outcome(agent.turn("/run kill -9 $$"))[0] == "[exit status 137]"
    assert outcome(agent.turn("/run printf '\\377'"))[0].startswith("\ufffd")


@pytest.mark.parametrize("source", ["/dev/zero", "/dev/urandom"])
def test_run_with_much_output_is_cut(agent: Agent, source: str) -> None:
    text, _ = outcome(agent.turn(f"/run echo first; head -c 5000000 {source}; echo; echo last"))
    assert text.startswith("first\n") and text.endswith("\nlast\n[exit status 0]") and "left out" in text


def test_what_would_not_fit_a_line_is_shortened_and_the_turn_ends(agent: Agent, tmp_path: Path) -> None:
    heard = agent.turn("/say a" + "\x01" * 600_000 + "z\n/write x " + "€" * 500_000 + "\n/fail " + "y" * 2_000_000)
    message, call, result, end = heard
    assert isinstance(message, Message) and message.text[0] == "a" and message.text[-1] == "z" and "left out" in message.text
    assert isinstance(call, ToolCall) and "left out" in call.arguments["text"] and isinstance(result, ToolResult)
    assert (tmp_path / "work/x").stat().st_size == 1_500_000
    assert isinstance(end, Failed) and len(end.message) < 1_000_000


def test_run_does_not_wait_for_what_it_left_in_the_background(agent: Agent) -> None:
    name = tag()
    start = time.monotonic()
    assert outcome(agent.turn(f"/run yes & sleep {name} & echo started"))[0].endswith("[exit status 0]")
    assert time.monotonic() - start < 5 and living(name)


def test_emit(agent: Agent) -> None:
    assert said(agent.turn("/emit 12 6 0")) == [f"{at} xxxxxx"[:6] for at in range(1, 13)]
    assert said(agent.turn("/emit 10 0 0")) == [str(at) for at in range(1, 11)]
    start = time.monotonic()
    assert len(said(agent.turn("/emit 21 6 100"))) == 21
    assert 0.2 <= time.monotonic() - start < 2


def test_emit_keeps_its_rate_on_the_whole(agent: Agent) -> None:
    start = time.monotonic()
    assert len(said(agent.turn("/emit 3000 10 5000"))) == 3000
    assert 0.59 <= time.monotonic() - start < 3


def test_garbage_is_counted_and_stops_nothing(agent: Agent) -> None:
    heard = agent.turn("/garbage\n/say on")
    errors = [error for error in heard if isinstance(error, ProtocolError)]
    assert len(errors) == 4 and all(len(error.raw) <= 4096 for error in errors)
    assert said(heard) == ["on"] and isinstance(heard[-1], Done)


def test_a_line_over_the_limit_is_a_protocol_error(agent: Agent) -> None:
    heard = agent.turn("/emit 2 2000000 0\n/say on")
    assert [type(output) for output in heard] == [ProtocolError, ProtocolError, Message, Done]


def test_fail(agent: Agent) -> None:
    assert agent.turn("/say a\n/fail it broke\n/say b") == [Message("a"), Failed("script_failed", "it broke")]
    assert said(agent.turn("/say c")) == ["c"]


def test_crash(agent: Agent) -> None:
    agent.begin("/say a\n/crash")
    assert agent.next() == Message("a")
    with pytest.raises(EOFError):
        agent.next()
    assert agent.child.wait(5) == 3


def test_hang_is_deaf_and_dies_by_kill(agent: Agent) -> None:
    agent.begin("/say a\n/hang")
    agent.next()
    blind = agent.adapter.interrupt()
    assert blind
    until(lambda: not int(os.popen(f"grep SigIgn /proc/{agent.child.pid}/status").read().split()[1], 16) & 0x4003 ^ 0x4003)
    agent.child.send(blind)
    os.killpg(agent.child.pid, signal.SIGTERM)
    assert agent.reader.read(0.3) == [] and agent.child.wait(0) is None
    agent.child.kill()
    assert agent.child.cause == "killed"


def test_orphan_dies_with_the_harness(agent: Agent) -> None:
    name = tag()
    seconds = f"{float(name):g}"
    (text,) = said(agent.turn(f"/orphan {name}"))
    pid = int(text.split()[-1])
    until(lambda: pid in living(seconds))
    assert os.getsid(pid) != agent.child.pid
    agent.child.kill()
    assert pid not in living(seconds)


def test_recall_and_native_state(agent: Agent, tmp_path: Path) -> None:
    agent.turn("first")
    agent.turn("second\nof two lines")
    agent.restart()
    assert said(agent.turn("/recall")) == ["first\nsecond\\nof two lines\n/recall"]
    (path,) = agent.adapter.native_paths(agent.place)
    assert path == tmp_path / "home/script.jsonl"
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["text"] for entry in kept if entry["role"] == "assistant"][:2] == ["You said: first", "You said: second"]


def test_memory_is_what_the_file_says(agent: Agent) -> None:
    """Put back from an earlier checkpoint, and with the half line that a killed agent leaves."""
    agent.turn("one")
    (path,) = agent.adapter.native_paths(agent.place)
    then = path.read_bytes()
    agent.turn("two")
    path.write_bytes(then + b'{"role":"user","id":"x","te')
    agent.restart()
    assert said(agent.turn("/recall")) == ["one\n/recall"]
    assert b'"te{' not in path.read_bytes()


def test_ratelimit_parks_once(agent: Agent) -> None:
    assert agent.turn("/say a\n/ratelimit 7\n/say b", input_id="i1")[1:] == [RateLimited(7.0, "rate limited for 7 s")]
    agent.restart()
    assert said(agent.turn("/say a\n/ratelimit 7\n/say b", input_id="i1")) == ["a", "b"]
    assert isinstance(agent.turn("/ratelimit 1", input_id="i2")[-1], RateLimited)
    assert said(agent.turn("/recall")) == ["/say a\\n/ratelimit 7\\n/say b\n/ratelimit 1\n/recall"]


def test_an_image_is_seen(agent: Agent) -> None:
    heard = agent.turn(inputs=(Input("i", "look", (Image("image/png", b"12345"),)),))
    assert said(heard) == ["You sent an image: image/png, 5 bytes", "You said: look"]


@pytest.mark.parametrize("line", ["/sleep 60", "/stream 1000 100 text", "/emit 1000 10 10", "/run sleep TAG & sleep TAG; true"])
def test_interrupt_ends_what_waits(agent: Agent, line: str) -> None:
    name = tag()
    agent.begin(f"/say a\n{line}\n/say never".replace("TAG", name))
    agent.next()
    if "TAG" in line:
        until(lambda: len(living(name)) >= 2)
    start = time.monotonic()
    agent.child.send(agent.adapter.interrupt() or b"")
    heard = agent.rest()
    assert heard[-1] == Interrupted() and "never" not in said(heard) and time.monotonic() - start < 2
    if "TAG" in line:
        assert living(name) == [] or until(lambda: living(name) == [], 1.0) >= 0
        assert outcome(heard) == ("interrupted", True)
    assert said(agent.turn("/recall"))[0].startswith("/say a")


def test_a_late_interrupt_does_not_end_the_next_turn(agent: Agent) -> None:
    agent.turn("/say a")
    agent.child.send(agent.adapter.interrupt() or b"")
    assert said(agent.turn("/say b")) == ["b"]


def test_steer_plays_after_the_current_line(agent: Agent) -> None:
    agent.begin("/say a\n/sleep 0.3\n/say c")
    agent.next()
    agent.child.send(agent.adapter.steer(Input("s", "/say b1\n/say b2")) or b"")
    assert agent.rest() == [
        Steered("s"),
        Message("b1"),
        Message("b2"),
        Message("c"),
        Done({"input_tokens": 10, "output_tokens": 4}, None, "c"),
    ]
    agent.child.send(agent.adapter.steer(Input("late", "/say d")) or b"")  # no turn: it isn't taken in, nor confirmed
    assert said(agent.turn("/recall")) == ["/say a\\n/sleep 0.3\\n/say c\n/say b1\\n/say b2\n/recall"]


def test_several_inputs_in_one_turn(agent: Agent) -> None:
    assert said(agent.turn(inputs=(Input("1", "/say a"), Input("2", "/say b\n/recall")))) == [
        "a",
        "b",
        "/say a\n/say b\\n/recall",
    ]


def test_first_prompt_of_a_task_edits_a_file(agent: Agent, tmp_path: Path) -> None:
    heard = agent.turn("Please fix it", task_title="Fix: the ü/thing!")
    assert isinstance(heard[0], ToolCall) and heard[0].arguments["path"] == "fix-the-ü-thing.md"
    assert (tmp_path / "work/fix-the-ü-thing.md").read_text() == "# Fix: the ü/thing!\n\nPlease fix it\n"
    assert said(heard) == ["You said: Please fix it"]
    assert not [output for output in agent.turn("more", task_title="Fix: the ü/thing!") if isinstance(output, ToolCall)]


@pytest.mark.parametrize(("text", "title"), [("/say a", "A task"), ("do it\n/say a", "A task"), ("do it", None)])
def test_no_edit_with_a_script_or_without_a_task(agent: Agent, text: str, title: str | None) -> None:
    assert not [output for output in agent.turn(text, task_title=title) if isinstance(output, ToolCall)]


def test_handoff_has_six_headings(agent: Agent) -> None:
    agent.turn('/write a.txt x\n/run false\n/ask {"question": "Which?"}')
    heard = agent.turn(purpose="handoff", inputs=())
    (text,) = said(heard)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Goal",
        "## Decisions",
        "## State",
        "## Dead ends",
        "## Open questions",
        "## Files",
    ]
    assert "- a.txt" in text and "- Which?" in text and "/write a.txt x" in text


def test_full_disk_fails_the_turn_and_not_the_agent(agent: Agent, tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "work/full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("making a device that is always full takes root")
    heard = agent.turn("/run echo x > full\n/say on")
    assert outcome(heard)[1] and said(heard) == ["on"]  # a command's own matter
    heard = agent.turn("/write full text\n/say never")
    assert outcome(heard) == ("No space left on device: full", True) and said(heard) == []
    assert isinstance(heard[-1], Failed) and heard[-1].code == "disk_full"
    assert said(agent.turn("/say on")) == ["on"]


def test_no_room_for_the_native_state(guardian: Guardian, tmp_path: Path) -> None:
    agent = Agent(guardian, tmp_path, limits=Limits(fsize=10_000))
    assert said(agent.turn("/say a")) == ["a"]
    (end,) = agent.turn("/say " + "x" * 20_000)
    assert isinstance(end, Failed) and end.code == "disk_full"
    assert isinstance(agent.turn("/say b")[-1], Failed)
    agent.restart()
    assert said(agent.turn("/recall"))[-1:] in ([], ["/say a\n/recall"])
    agent.child.kill()


def test_agent_ends_with_its_input(agent: Agent) -> None:
    agent.begin("/say a\n/sleep 60")
    agent.next()
    agent.child.stdin.close()
    assert agent.child.wait(5) == 0
