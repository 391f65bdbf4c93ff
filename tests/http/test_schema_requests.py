"""Requests held against the documents: what is let through, and what a refusal says."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from app.core.errors import ByreError, Invalid, Missing, TooLarge
from app.http.schema import Validator

VALIDATOR = Validator()
SESSION: dict[str, Any] = {"harness": "script", "config": {"model": "m", "tools": []}}
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}}}


def body(operation: str, value: Any) -> Any:
    return VALIDATOR.check_body(operation, value if isinstance(value, bytes) else json.dumps(value).encode())


def config(**changes: Any) -> dict[str, Any]:
    return {**SESSION, "config": {**SESSION["config"], **changes}}


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("create", SESSION),
        (
            "create",
            config(instructions="a: b\n" * 10_000, reasoning_effort="low", bindings=[{"alias": "x", "runtime": [TOOL]}]),
        ),
        ("create", {**SESSION, "credentials": [{"binding": "x", "value": {"any": ["thing", None, 1.5]}}]}),
        ("send", {"type": "user.message", "text": ""}),
        ("send", {"type": "user.message", "text": "x", "key": "k", "delivery": "pigeon"}),
        ("send", {"type": "user.interrupt"}),
        ("executorReply", {"connection": "c", "call_id": "i", "progress": None}),
        ("executorReply", {"connection": "c", "call_id": "i", "result": {"content": [], "structured_content": [0] * 40_000}}),
        ("registerExecutor", {"binding": "x", "tools": [TOOL] * 1000}),
        ("createTask", {"title": "ü" * 500, "a field of a newer client": 1}),
        ("sendMessage", {"text": "", "images": ["a"]}),
    ],
)
def test_good_bodies_come_back_as_they_were(operation: str, value: Any) -> None:
    assert body(operation, value) == value


@pytest.mark.parametrize(
    ("operation", "value", "message"),
    [
        ("create", config(tools=[5]), "config.tools[0]: 5 is not of type 'string'"),
        ("create", config(model=None), "config.model: null is not of type 'string'"),
        ("create", config(model="a\0"), "config.model: holds a NUL character"),
        ("create", config(tools=["t"] * 1001), "config.tools: has 1001 items, at most 1000 are allowed"),
        ("create", {"harness": "script"}, "config: is missing"),
        ("create", {**SESSION, "x": 1}, "x: unknown field"),
        ("create", {**SESSION, "x": 1, "y": 2, "z": 3}, "x: unknown field (and 2 more)"),
        ("create", {**SESSION, 'a"\n': 1}, '"a\\"\\n": unknown field'),
        ("create", {**SESSION, "harness": "h" * 129}, "harness: is longer than 128 characters"),
        ("create", [], "body: an array is not of type 'object'"),
        ("send", {"type": "user.message"}, "text: is missing"),
        ("send", {"type": "nonsense"}, 'type: "nonsense" is not one of ["user.message","user.interrupt"]'),
        ("executorReply", {"connection": "c", "call_id": "i"}, "body: exactly one of 'progress', 'result' is needed"),
        (
            "executorReply",
            {"connection": "c", "call_id": "i", "progress": 1, "result": {"content": []}},
            "body: exactly one of 'progress', 'result' is needed",
        ),
        (
            "executorReply",
            {"connection": "c", "call_id": "i", "result": {"content": [{}]}},
            "result.content[0].type: is missing",
        ),
        ("respondInbox", {"responses": []}, "responses: has 0 items, at least 1 are needed"),
        ("createTask", {"title": ""}, "title: is shorter than 1 character"),
    ],
)
def test_a_refusal_names_the_field_and_why(operation: str, value: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        body(operation, value)
    assert caught.value.message == message
    assert caught.value.field == (None if message.startswith("body: ") else message.partition(": ")[0])


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"nonsense", b"NaN", b'{"a": NaN}', b'{"a": Infinity}', b"[1,]", b"1e999", b"\xff", b'"\\ud800"', b"\xef\xbb\xbf{}",
     b'{"harness":"a","harness":"b","config":{}}', b'{"config":{"a:b":1,"c":{"a":1,"\\u0061":2}}}', b"[" * 100 + b"]" * 100,
     b"[" * 100_000, b'{"a":' * 100_000],
)  # fmt: skip
def test_what_is_not_proper_json_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid):
        body("create", raw)


def test_names_in_strings_are_not_names() -> None:
    tricky = r'a": {"x": 1}, \"b\": 2, \\'
    value = config(instructions=tricky, model='":":":')
    assert body("create", value) == value


def test_too_many_values_are_refused() -> None:
    with pytest.raises(TooLarge):
        body("executorReply", {"connection": "c", "call_id": "i", "progress": [0] * 50_001})


def test_a_refusal_repeats_no_secret_and_nothing_big() -> None:
    secret = "hunter2-" + "s" * 200
    values = [
        ("create", {**SESSION, "credentials": [secret]}),
        ("create", {**SESSION, "credentials": secret}),
        ("create", {**SESSION, "credentials": [{"binding": {"deep": secret}, "value": secret}]}),
        ("addPushSubscription", {"endpoint": "https://x", "p256dh": "k", "auth": secret * 2}),
        ("addPushSubscription", {"endpoint": "https://x", "p256dh": [secret], "auth": "k"}),
        ("send", {"type": "x" * 100_000}),
        ("create", {**SESSION, "y" * 100_000: 1}),
    ]
    for operation, value in values:
        with pytest.raises(Invalid) as caught:
            body(operation, value)
        assert "hunter2" not in caught.value.message
        assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"binding": "x", "tools": [TOOL] * 5000}, "tools: has 5000 items, at most 1000 are allowed"),
        ({"binding": "x", "tools": [TOOL] * 999 + [{**TOOL, "name": 5}]}, "tools[999].name: 5 is not of type 'string'"),
        (
            {"binding": "x", "tools": [{**TOOL, "input_schema": list(range(40))}] * 1000, "y": 1},
            "body: does not fit its schema, and has too many values (44004) to say where",
        ),
    ],
)
def test_a_heavy_body_is_refused_in_bounded_time(value: Any, message: str) -> None:
    raw = json.dumps(value).encode()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with pytest.raises(Invalid) as caught:
            VALIDATOR.check_body("registerExecutor", raw)
        times.append(time.perf_counter() - start)
        assert caught.value.message == message
    # The slow validator alone takes 0.4 s for the first of these; the bound leaves room for a busy machine.
    assert min(times) < 0.15


@pytest.mark.parametrize(
    ("operation", "given", "expected"),
    [
        ("events", {}, {"limit": 100}),
        ("events", {"limit": "7", "after": "c", "unheard": "of"}, {"limit": 7, "after": "c"}),
        ("listTaskEvents", {"after": "9223372036854775807"}, {"after": 2**63 - 1, "limit": 500}),
        ("getTaskChanges", {"snapshot": "3", "step": "true"}, {"snapshot": 3, "step": True}),
        ("getTaskChanges", {"step": "false"}, {"step": False}),
        ("listInbox", {"state": "open"}, {"state": "open"}),
        ("getMe", {"x": "y"}, {}),
    ],
)
def test_query_parameters_get_their_types(operation: str, given: dict[str, str], expected: dict[str, Any]) -> None:
    assert VALIDATOR.check_query(operation, given) == expected


@pytest.mark.parametrize(
    ("operation", "given", "message"),
    [
        ("events", {"limit": "0"}, "limit: 0 is less than 1"),
        ("events", {"limit": "1001"}, "limit: 1001 is more than 1000"),
        ("events", {"limit": "x"}, "limit: \"x\" is not of type 'integer'"),
        ("events", {"limit": ""}, "limit: \"\" is not of type 'integer'"),
        ("events", {"limit": "1e2"}, "limit: \"1e2\" is not of type 'integer'"),
        ("events", {"limit": "٣"}, "limit: \"٣\" is not of type 'integer'"),
        ("events", {"limit": ["1", "2"]}, "limit: given more than once"),
        ("events", {"after": "x" * 1025}, "after: is longer than 1024 characters"),
        ("listTaskEvents", {"after": "9223372036854775808"}, "after: 9223372036854775808 is out of range"),
        ("listTaskEvents", {"after": "9" * 5000}, f"after: \"{'9' * 60}…\" is not of type 'integer'"),
        ("getTaskChanges", {"step": "1"}, "step: \"1\" is not of type 'boolean'"),
        ("listInbox", {"state": "x"}, 'state: "x" is not one of ["open","answered","dismissed","superseded"]'),
        ("getTaskDiff", {"base": "b", "tree": "t"}, "path: is missing"),
    ],
)
def test_query_parameters_are_refused_by_name(operation: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        VALIDATOR.check_query(operation, given)
    assert caught.value.message == message


def test_headers_count_in_any_case_and_not_when_empty() -> None:
    assert VALIDATOR.check_headers("streamEvents", {"LAST-EVENT-ID": "7", "Accept": "x"}) == {"Last-Event-ID": 7}
    assert VALIDATOR.check_headers("streamEvents", {"Last-Event-ID": ""}) == {}
    with pytest.raises(Invalid, match="Last-Event-ID"):
        VALIDATOR.check_headers("streamEvents", {"last-event-id": "x"})


def test_ids_in_paths() -> None:
    assert VALIDATOR.check_path("get", {"id": "aB" * 16}) == {"id": "aB" * 16}
    for bad in ("zzz", "a" * 31, "a" * 32 + "\n", ""):
        with pytest.raises(Invalid, match=r"^id: "):
            VALIDATOR.check_path("get", {"id": bad})
    with pytest.raises(Missing):
        VALIDATOR.check_path("getTask", {"taskId": "x" * 129})


def test_content_types() -> None:
    assert VALIDATOR.content_types("send") == ("application/json",)
    assert set(VALIDATOR.content_types("uploadBlob")) == {"image/png", "image/jpeg", "image/gif", "image/webp"}
    assert VALIDATOR.content_types("list") == ()


def test_mistakes_of_our_own_are_not_the_callers() -> None:
    for wrong in (lambda: body("list", {}), lambda: body("nothing", {}), lambda: VALIDATOR.check_query("nothing", {})):
        with pytest.raises(KeyError) as caught:
            wrong()
        assert not isinstance(caught.value, ByreError)


def test_responses_can_be_held_against_the_documents() -> None:
    error = {"error": {"code": "not_found", "message": "no such session"}, "request_id": "r"}
    assert VALIDATOR.response_validator("get", 404).is_valid(error)
    assert not VALIDATOR.response_validator("get", 200).is_valid(error)
    assert VALIDATOR.response_validator("getTask", 404).is_valid({"message": "no such task"})
    session = {**SESSION, "id": "a" * 32, "status": "idle", "created_at": "2026-01-15T09:29:58.004Z",
               "updated_at": "2026-01-15T09:29:58.004Z", "descriptors": []}  # fmt: skip
    assert VALIDATOR.response_validator("create", 201).is_valid(session)
    assert not VALIDATOR.response_validator("create", 201).is_valid({**session, "status": "busy"})


def test_event_schemas_stand_alone() -> None:
    import jsonschema

    result = {"turn": "t", "call_id": "c", "result": {"content": [{"type": "text", "text": "42"}]}}
    brain = jsonschema.Draft202012Validator(VALIDATOR.event_data_schema("tool.result"))
    assert brain.is_valid(result) and not brain.is_valid({"call_id": "c", "result": {"content": []}})
    byre = jsonschema.Draft202012Validator(VALIDATOR.event_payload_schema("agent.tool_result"))
    assert byre.is_valid(result) and not byre.is_valid({**result, "result": {"content": [{}]}})
    with pytest.raises(KeyError):
        VALIDATOR.event_data_schema("nonsense")
