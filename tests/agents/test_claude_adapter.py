"""The adapter of the Claude Code CLI by itself: commands to bytes, lines to outputs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from workers.harness.base import (
    Done,
    Failed,
    Image,
    Input,
    Interrupted,
    Message,
    Place,
    ProtocolError,
    RateLimited,
    Send,
    Steered,
    Turn,
)
from workers.harness.claude import ClaudeAdapter
from workers.harness.claude_command import ClaudeOptions, vendor_session

ID = "01a22ed6270e7f2d9c11e968b23285bc"
UUID = "01a22ed6-270e-7f2d-9c11-e968b23285bc"
PLACE = Place(home=Path("/h"), cwd=Path("/w"), session_id=ID, model="m")
RESULT = {
    "type": "result", "subtype": "success", "is_error": False, "result": "bye", "duration_ms": 5, "total_cost_usd": 0.5,
    "usage": {"input_tokens": 3, "output_tokens": 4, "server_tool_use": {}},
}  # fmt: skip


def line(**said: Any) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def started(adapter: ClaudeAdapter, **more: Any) -> list[dict[str, Any]]:
    adapter.command(PLACE)
    sent = adapter.start_turn(Turn(ID, (Input("i", "hi", (Image("image/png", b"png"),)),), model="m", **more))
    return [json.loads(part) for part in sent.splitlines()]


@pytest.fixture
def adapter() -> ClaudeAdapter:
    return ClaudeAdapter(ClaudeOptions(tools=("Bash", "Read")))


def taken(adapter: ClaudeAdapter, number: str = UUID) -> list[Any]:
    return adapter.decode(line(type="user", isReplay=True, uuid=number, message={"role": "user", "content": []}))


def test_values_of_users_are_no_options_and_ids_are_uuids(adapter: ClaudeAdapter) -> None:
    place = Place(home=Path("/h"), cwd=Path("/w"), session_id=ID, model="--evil", instructions="-p", fresh=False)
    command = adapter.command(place)
    assert "--model=--evil" in command and "--append-system-prompt=-p" in command and f"--resume={UUID}" in command
    assert "--tools=Bash,Read" in command
    assert vendor_session("short") == vendor_session("short") != vendor_session("other")


def test_an_image_goes_before_the_text(adapter: ClaudeAdapter) -> None:
    (message,) = started(adapter)
    assert message["uuid"] == UUID
    image, text = message["message"]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "cG5n"} and text["text"] == "hi"


def test_another_model_is_asked_for_once(adapter: ClaudeAdapter) -> None:
    started(adapter)
    taken(adapter)
    adapter.decode(line(**RESULT))
    request, _ = adapter.start_turn(Turn("t2", (Input("i", "x"),), model="n")).splitlines()
    assert json.loads(request)["request"] == {"subtype": "set_model", "model": "n"}
    assert len(adapter.start_turn(Turn("t3", (Input("i", "x"),), model="n")).splitlines()) == 1


def test_costs_are_differences_and_usage_is_of_the_turn(adapter: ClaudeAdapter) -> None:
    started(adapter)
    assert adapter.decode(line(**RESULT)) == [], "the end of a turn that isn't ours"
    taken(adapter)
    assert adapter.decode(line(**{**RESULT, "total_cost_usd": 0.75})) == [
        Done({"input_tokens": 3, "output_tokens": 4}, 0.25, "bye")
    ]
    assert adapter.decode(line(**RESULT)) == [], "no turn is open"


def test_a_late_steering_message_prolongs_the_turn(adapter: ClaudeAdapter) -> None:
    started(adapter)
    taken(adapter)
    assert adapter.steer(Input("s1", "more"))
    assert adapter.decode(line(**RESULT)) == []
    assert taken(adapter, vendor_session("s1")) == [Steered("s1")]
    (end,) = adapter.decode(line(**{**RESULT, "total_cost_usd": 1.5}))
    assert isinstance(end, Done) and end.usage["output_tokens"] == 8 and end.cost_usd == 1.5
    assert adapter.steer(Input("s2", "too late")) is None


def test_interrupts_before_and_after_the_turn_has_begun(adapter: ClaudeAdapter) -> None:
    started(adapter)
    assert adapter.interrupt()
    assert adapter.decode(line(type="command_lifecycle", command_uuid=UUID, state="cancelled")) == [Interrupted()]
    started(adapter)
    taken(adapter)
    adapter.steer(Input("s1", "more"))
    sent = [json.loads(part)["request"]["subtype"] for part in (adapter.interrupt() or b"").splitlines()]
    assert sent == ["cancel_async_message", "interrupt"]
    cut = {**RESULT, "subtype": "error_during_execution", "is_error": True, "result": None}
    assert adapter.decode(line(**cut)) == [Interrupted()]


def test_a_long_limit_is_parked_and_a_short_one_waited_for(adapter: ClaudeAdapter) -> None:
    started(adapter)
    retry = {"type": "system", "subtype": "api_retry", "error_status": 429}
    assert adapter.decode(line(**retry, retry_delay_ms=900)) == []
    (send,) = adapter.decode(line(**retry, retry_delay_ms=60_000))
    assert isinstance(send, Send) and b'"interrupt"' in send.data
    cut = {**RESULT, "subtype": "error_during_execution", "is_error": True}
    (end,) = adapter.decode(line(**cut))
    assert isinstance(end, RateLimited) and end.reset_seconds == 60


def test_the_reset_of_a_limit_is_told_against_the_clock_of_its_line(adapter: ClaudeAdapter) -> None:
    started(adapter)
    adapter.decode(line(type="rate_limit_event", rate_limit_info={"resetsAt": 1_800_000_100}))
    message = {"model": "<synthetic>", "content": [{"type": "text", "text": "limited"}]}
    at = "2027-01-15T08:00:00.000Z"  # 1,800,000,000
    assert adapter.decode(line(type="assistant", error="rate_limit", message=message, timestamp=at)) == []
    refused = {**RESULT, "is_error": True, "api_error_status": 429, "result": "limited"}
    assert adapter.decode(line(**refused)) == [RateLimited(100.0, "limited")]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"api_error_status": 401}, "vendor_auth"),
        ({"api_error_status": 400}, "vendor_refused"),
        ({"api_error_status": 503}, "vendor_error"),
        ({"api_error_status": None}, "vendor_error"),
        ({"subtype": "error_max_turns"}, "max_turns"),
        ({"subtype": "error_during_execution", "result": None, "errors": ["No conversation found: x"]}, "native_state_lost"),
    ],
)
def test_failures_by_their_status(adapter: ClaudeAdapter, more: dict[str, Any], code: str) -> None:
    started(adapter)
    (end,) = adapter.decode(line(**{**RESULT, "is_error": True, **more}))
    assert isinstance(end, Failed) and end.code == code


def test_a_result_too_long_to_read_ends_the_turn_and_nothing_else_does(adapter: ClaudeAdapter) -> None:
    started(adapter)
    taken(adapter)
    whole = line(**RESULT)
    text = line(type="user", message={"content": '{"type":"result","duration_ms":1}'})
    assert adapter.lost(text[:40], text[-60:]) == []
    assert adapter.lost(b"", whole) == [Done({}, None, "")]
    assert adapter.lost(b"", whole) == []


@pytest.mark.parametrize(
    "bad", [b"{half", b"[]", b'"x"', b'{"type":"martian"}', b'{"type":"assistant"}', b"\xff", b'{"type":5}', b"{}"]
)
def test_what_makes_no_sense_is_a_protocol_error(adapter: ClaudeAdapter, bad: bytes) -> None:
    started(adapter)
    with pytest.raises(ProtocolError):
        adapter.decode(bad)
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": "still here"}]}}
    assert adapter.decode(line(**said)) == [Message("still here")]


def test_a_permission_is_denied_and_a_question_left_to_people(adapter: ClaudeAdapter) -> None:
    started(adapter)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        [sent] = adapter.decode(line(type="control_request", request_id="r", request=request))
        assert isinstance(sent, Send)
        response: dict[str, Any] = json.loads(sent.data)["response"]
        assert response["request_id"] == "r"
        return response

    questions = {"questions": [{"question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}]}
    asked = answer({"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": questions})
    assert asked["response"]["behavior"] == "deny" and "next message" in asked["response"]["message"]
    denied = answer({"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "x"}})
    assert denied["response"]["behavior"] == "deny" and "permission" in denied["response"]["message"]
    assert answer({"subtype": "elicitation"})["subtype"] == "error"


def test_only_a_session_with_people_has_the_question_tool(adapter: ClaudeAdapter) -> None:
    assert "--permission-prompts=none" in adapter.command(PLACE)
    assert "--permission-prompt-tool=stdio" in adapter.command(dataclasses.replace(PLACE, people=True))
