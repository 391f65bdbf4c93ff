"""What reaches a service is checked first: bodies by size, type and schema, parameters by their document."""

from __future__ import annotations

import io
from typing import Any

import falcon
import orjson
import pytest
from falcon import testing

from app.core.errors import Invalid, TooLarge
from app.http.deps import Limits
from app.http.requests import read_body
from tests.http.conftest import Tier
from tests.http.fakes import MANAGEMENT, OTHER_SESSION, SESSION

EVENTS = f"/sessions/{SESSION}/events"
HELLO = {"type": "user.message", "text": "hello"}
CREATE = {"harness": "script", "config": {"model": "m", "tools": []}}


def send(tier: Tier, body: bytes, content_type: str | None = "application/json", **headers: str) -> Any:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if content_type is not None:
        given["Content-Type"] = content_type
    return tier.call("POST", EVENTS, body=body, headers=given)


def test_each_operation_reaches_its_service(tier: Tier, validator: Any) -> None:
    event = "0198F2C4B1E37D20A6C41F0B9E7D5A32"
    upper = SESSION.upper()
    calls: list[tuple[str, str, str, Any, int, tuple[Any, ...]]] = [
        ("create", "POST", "/sessions", CREATE, 201, ("create", None, CREATE)),
        ("list", "GET", f"/sessions?after={OTHER_SESSION}&limit=7", None, 200, ("list", None, OTHER_SESSION, 7)),
        ("list", "GET", "/sessions?after=", None, 200, ("list", None, None, 100)),
        ("get", "GET", f"/sessions/{upper}", None, 200, ("get", SESSION)),
        ("close", "POST", f"/sessions/{upper}/close", None, 202, ("close", SESSION)),
        ("send", "POST", f"/sessions/{upper}/events", HELLO, 202, ("send", SESSION, HELLO)),
        ("events", "GET", f"/sessions/{upper}/events?after=0&limit=5", None, 200, ("events", SESSION, "0", 5)),
        ("withdrawInput", "DELETE", f"/sessions/{upper}/inputs/{event}", None, 200, ("withdraw", SESSION, event.lower())),
        ("flush", "POST", f"/sessions/{upper}/flush", None, 200, ("flush", SESSION)),
        ("sync", "GET", f"/sessions/{upper}/sync", None, 200, ("sync", SESSION)),
        ("resume", "POST", f"/sessions/{upper}/resume", None, 200, ("resume", SESSION)),
        ("restore", "POST", f"/sessions/{upper}/restore", {"checkpoint": "c1"}, 200, ("restore", SESSION, "c1")),
    ]
    for id, method, path, body, status, called in calls:
        answer = tier.call(method, path, body)
        assert answer.status_code == status, (id, answer.text)
        name, caller, rest = tier.sessions.calls[-1]
        assert ((name, *rest), caller) == (called, MANAGEMENT)
        validator.response_validator(id, status).validate(answer.json)
        assert answer.headers["cache-control"] == "no-store"
    assert tier.call("GET", "/catalog").json == {"tools": []}


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_taken(tier: Tier, content_type: str) -> None:
    assert send(tier, orjson.dumps(HELLO), content_type).status_code == 202


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "a/b"]
)
def test_anything_else_is_415(tier: Tier, content_type: str | None) -> None:
    answer = send(tier, orjson.dumps(HELLO), content_type)
    assert (answer.status_code, answer.json["error"]["code"]) == (415, "invalid_request")
    assert "application/json" in answer.json["error"]["message"]


def test_an_encoded_body_is_415(tier: Tier) -> None:
    assert send(tier, orjson.dumps(HELLO), Content_Encoding="gzip").status_code == 415
    assert send(tier, orjson.dumps(HELLO), Content_Encoding="identity").status_code == 202


@pytest.mark.parametrize("body", [b"", b"{", b"[", b"nul", b"\xff\xfe", b'{"type":"user.message","text":"x"} x', b'{"a":NaN}'])
def test_malformed_json_is_400(tier: Tier, body: bytes) -> None:
    answer = send(tier, body)
    assert (answer.status_code, answer.json["error"]["code"]) == (400, "invalid_request")


def test_an_empty_body_needs_no_content_type(tier: Tier) -> None:
    assert tier.call("POST", f"/sessions/{SESSION}/close").status_code == 202
    assert send(tier, b"", None).status_code == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"harness": "script"}, "config"),
        ({**CREATE, "extra": 1}, "extra"),
        ({**CREATE, "harness": 5}, "harness"),
        ({"harness": "script", "config": {"model": "m", "tools": [5]}}, "config.tools[0]"),
        ([], "body"),
    ],
)
def test_the_field_at_fault_is_named(tier: Tier, body: Any, field: str) -> None:
    answer = tier.call("POST", "/sessions", body)
    assert answer.status_code == 400
    assert field in answer.json["error"]["message"]
    assert not tier.sessions.calls


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1.5", "limit=1&limit=2", "after=a&after=b"]
)
def test_bad_parameters_are_400(tier: Tier, query: str) -> None:
    for path in ("/sessions", EVENTS):
        answer = tier.call("GET", path, query_string=query)
        assert answer.status_code == 400
        assert answer.json["error"]["message"].startswith(query.partition("=")[0])
    answer = tier.call("GET", EVENTS, query_string=query, headers={"Accept": "text/event-stream"})
    assert answer.status_code == 400


def test_unknown_parameters_are_passed_over(tier: Tier) -> None:
    assert tier.call("GET", "/sessions", query_string="utm=x&utm=y").status_code == 200


def test_the_limit_is_on_every_operation() -> None:
    tier = Tier(limits=Limits(body=100))
    for path, body in (
        (EVENTS, b'{"type":"user.message","text":"%s"}' % (b"x" * 100)),
        (f"/sessions/{SESSION}/close", b"x" * 101),
    ):
        answer = tier.call("POST", path, body=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json["error"]["code"]) == (413, "body_limit")
        assert "100" in answer.json["error"]["message"]
    assert not tier.sessions.calls
    assert tier.call("POST", f"/sessions/{SESSION}/close", body=b"x" * 100).status_code == 202


class Tape(io.BytesIO):
    """A body that counts what was read of it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        self.taken += len(piece)
        return piece


def request(body: io.BytesIO, length: int | None) -> falcon.Request:
    environ = testing.create_environ(method="POST", headers={} if length is None else {"Content-Length": str(length)})
    if length is None:
        environ.pop("CONTENT_LENGTH", None)
    return falcon.Request({**environ, "wsgi.input": body})


def test_a_body_over_the_limit_is_refused_unread() -> None:
    tape = Tape(b"x" * 5000)
    with pytest.raises(TooLarge):
        read_body(request(tape, 5000), 1000)
    assert tape.taken == 0


def test_a_body_without_a_length_is_counted_while_it_is_read() -> None:
    tape = Tape(b"x" * 50_000_000)
    with pytest.raises(TooLarge):
        read_body(request(tape, None), 100_000)
    assert tape.taken <= 200_000
    assert read_body(request(Tape(b"x" * 100_000), None), 100_000) == b"x" * 100_000


def test_a_body_that_breaks_off_is_invalid() -> None:
    with pytest.raises(Invalid, match="shorter"):
        read_body(request(Tape(b"x" * 10), 20), 100)

    class Lost(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise TimeoutError

    with pytest.raises(Invalid, match="to its end"):
        read_body(request(Lost(), 20), 100)
