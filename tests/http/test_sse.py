"""Event streams as the server iterates them: what is written when, what ends them, and that all is let go of afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import falcon
import pytest
from falcon import testing

from app.core.errors import Conflict, CursorUnavailable, Overloaded, Unauthorized, Unavailable
from app.core.principal import Principal
from app.http.auth import Credential
from app.http.deps import Limits
from app.http.drain import Drain
from app.http.sse import GOING_AWAY, HEARTBEAT, RETRY, EventBody, Followers, wanted
from tests.http.conftest import Tier
from tests.http.fakes import SESSION, USER, FakeClock, FakeStream, FakeTokens

EVENTS = f"/sessions/{SESSION}/events"


class Script:
    """A stream whose reads are told beforehand: bytes, an error, or a number of seconds that pass silently. Then it is over."""

    def __init__(self, clock: FakeClock, *steps: bytes | float | Exception) -> None:
        self._clock = clock
        self._steps = list(steps)
        self.closed = 0

    def read(self, timeout: float) -> bytes:
        if not self._steps:
            raise EOFError
        step = self._steps[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, bytes):
            self._steps.pop(0)
            return step
        waited = min(timeout, step)
        self._clock.now += waited
        self._steps[0] = step - waited
        if self._steps[0] <= 0:
            self._steps.pop(0)
        return b""

    def close(self) -> None:
        self.closed += 1


class Desk:
    """Followers with a clock, tokens and a drain in the test's hands."""

    def __init__(self, **limits: Any) -> None:
        self.clock = FakeClock()
        self.tokens = FakeTokens()
        self.drain = Drain()
        self.followers = Followers(self.tokens, Limits(**limits), self.drain, self.clock)

    def open(self, stream: Any, token: str = "user", *, cookie: bool = False) -> EventBody:
        resp = falcon.Response()
        self.followers.attach(resp, {}, Credential(token, cookie), self.tokens.callers[token], lambda: stream)
        assert isinstance(resp.stream, EventBody)
        return resp.stream

    def run(self, *steps: bytes | float | Exception) -> list[bytes]:
        return list(self.open(Script(self.clock, *steps)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_first_bytes_come_before_any_event(desk: Desk) -> None:
    stream = FakeStream([])
    assert next(desk.open(stream)) == RETRY == b"retry: 2000\n\n"
    assert not stream.timeouts


def test_frames_are_passed_on_as_they_come(desk: Desk) -> None:
    assert desk.run(b"a", b"b", b"c") == [RETRY, b"a", b"b", b"c"]


def test_silence_makes_heartbeats_and_only_silence(desk: Desk) -> None:
    assert desk.run(9.9, b"a", 9.9, b"b", 10.0, b"c") == [RETRY, b"a", b"b", HEARTBEAT, b"c"]
    assert desk.run(35.0) == [RETRY, HEARTBEAT, HEARTBEAT, HEARTBEAT]


def test_heartbeats_are_never_further_apart_than_asked() -> None:
    desk = Desk(heartbeat=3.0)
    body = iter(desk.open(Script(desk.clock, 100.0)))
    next(body)
    at = desk.clock.now
    for data in body:
        assert data == HEARTBEAT
        assert desk.clock.now - at <= 3.0
        at = desk.clock.now


@pytest.mark.parametrize("cookie", [False, True])
def test_a_revoked_token_ends_a_silent_stream_within_a_heartbeat(desk: Desk, cookie: bool) -> None:
    body = desk.open(Script(desk.clock, 1000.0), cookie=cookie)
    assert [next(body), next(body)] == [RETRY, HEARTBEAT]
    desk.tokens.revoke("user")
    began = desk.clock.now
    assert list(body) == []
    assert desk.clock.now - began <= 10.0


def test_a_revoked_token_ends_a_busy_stream_within_a_heartbeat(desk: Desk) -> None:
    class Busy(Script):
        def read(self, timeout: float) -> bytes:
            desk.clock.now += 0.5
            return super().read(timeout)

    body = desk.open(Busy(desk.clock, *[b"x"] * 100))
    assert [next(body), next(body)] == [RETRY, b"x"]
    desk.tokens.revoke("user")
    began = desk.clock.now
    assert b"x" in list(body)
    assert desk.clock.now - began <= 10.0


def test_the_token_is_asked_once_a_heartbeat_and_freshly(desk: Desk) -> None:
    desk.run(*([b"x", 0.1] * 300))
    assert 2 <= len(desk.tokens.asked) <= 4
    assert max(desk.tokens.asked) <= 1.0


class Unsure(FakeTokens):
    def authenticate(self, bearer: str, *, fresh: float = 10.0) -> Principal:
        raise Unavailable("the store is away")


def test_a_token_that_can_not_be_asked_about_cuts_nobody_off(desk: Desk) -> None:
    desk.followers.tokens = Unsure()
    assert desk.run(25.0, b"x") == [RETRY, HEARTBEAT, HEARTBEAT, b"x"]


def test_a_stream_that_fails_in_its_middle_just_ends(desk: Desk) -> None:
    assert desk.run(b"a", Unavailable("away")) == [RETRY, b"a"]


def test_close_frees_everything_once(desk: Desk) -> None:
    stream = FakeStream([])
    body = desk.open(stream)
    assert (len(desk.followers), len(desk.drain)) == (1, 1)
    next(body)
    body.close()
    body.close()
    assert (stream.closed, len(desk.followers), len(desk.drain)) == (1, 0, 0)
    assert list(body) == []


def test_draining_sends_a_hint_and_ends(desk: Desk) -> None:
    body = desk.open(FakeStream([b"late"]))
    next(body)
    desk.drain.begin()
    assert list(body) == [GOING_AWAY] == [b"retry: 1000\n\n"]
    body.close()
    assert len(desk.followers) == 0


def test_draining_wakes_a_stream_that_waits(desk: Desk) -> None:
    class Waits(FakeStream):
        def read(self, timeout: float) -> bytes:
            desk.drain.begin()  # while this reads
            return super().read(timeout)

    body = desk.open(Waits([]))
    assert list(body) == [RETRY, GOING_AWAY]


def test_a_stream_that_opens_while_draining_ends_at_once(desk: Desk) -> None:
    desk.drain.begin()
    assert list(desk.open(FakeStream([b"x"]))) == [RETRY, GOING_AWAY]


def test_streams_are_bounded_per_process_and_token() -> None:
    desk = Desk(max_streams=3, max_streams_per_token=2)
    first = desk.open(FakeStream([]), "user")
    desk.open(FakeStream([]), "user")
    with pytest.raises(Overloaded, match="token"):
        desk.open(FakeStream([]), "user")
    desk.open(FakeStream([]), "operator")
    with pytest.raises(Overloaded, match="process"):
        desk.open(FakeStream([]), "management")
    first.close()
    desk.open(FakeStream([]), "user")
    assert len(desk.followers) == 3


def test_a_stream_that_can_not_be_opened_takes_no_place(desk: Desk) -> None:
    def refuse() -> FakeStream:
        raise Conflict("no")

    for _ in range(5):
        with pytest.raises(Conflict):
            desk.followers.attach(falcon.Response(), {}, Credential("user"), USER, refuse)
    assert (len(desk.followers), len(desk.drain)) == (0, 0)


def test_nothing_of_the_request_is_kept(desk: Desk) -> None:
    class Held:
        """Stands for what a server puts into the environment."""

    held = Held()
    gone = weakref.ref(held)
    env = {"HTTP_AUTHORIZATION": "Bearer user", "REQUEST_METHOD": "GET", "RAW_URI": "/x", "wsgi.input": held}
    resp = falcon.Response()
    desk.followers.attach(resp, env, Credential("user"), USER, lambda: FakeStream([]))
    del held
    next(iter(resp.stream))  # type: ignore[arg-type]
    gc.collect()
    assert gone() is None
    assert env == {"REQUEST_METHOD": "GET", "RAW_URI": "/x"}


# -- over the application


def follow(tier: Tier, query: str = "", token: str = "management", **headers: str) -> Any:
    given = {"Accept": "text/event-stream", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return tier.call("GET", EVENTS, query_string=query, token=token, headers=given)


@pytest.fixture
def filled(tier: Tier) -> Iterator[Tier]:
    """A log of three events whose streams end after history."""
    for text in "abc":
        tier.call("POST", EVENTS, {"type": "user.message", "text": text})
    tier.sessions.stream = _ending(tier.sessions.stream)  # type: ignore[method-assign]
    yield tier
    assert all(stream.closed == 1 for stream in tier.sessions.streams)


def _ending(open: Any) -> Any:
    def stream(*args: Any) -> FakeStream:
        opened: FakeStream = open(*args)
        opened.end()
        return opened

    return stream


def ids(answer: Any) -> list[str]:
    return [line.removeprefix("id: ") for line in answer.text.splitlines() if line.startswith("id: ")]


def test_headers_and_history(filled: Tier) -> None:
    answer = follow(filled)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert answer.headers["x-request-id"]
    assert answer.text.startswith("retry: 2000\n\n")
    assert ids(answer) == ["0", "1", "2"]


def test_a_cursor_comes_by_query_or_header_and_the_query_wins(filled: Tier) -> None:
    assert ids(follow(filled, "after=0")) == ["1", "2"]
    assert ids(follow(filled, Last_Event_ID="1")) == ["2"]
    assert ids(follow(filled, "after=0", Last_Event_ID="1")) == ["1", "2"]
    assert ids(follow(filled, "after=", Last_Event_ID="1")) == ["2"]
    assert ids(follow(filled, Last_Event_ID="")) == ["0", "1", "2"]


def test_a_json_page_passes_over_the_header(filled: Tier) -> None:
    answer = filled.call("GET", EVENTS, headers={"Last-Event-ID": "1"})
    assert len(answer.json["events"]) == 3


def test_a_bad_cursor_is_refused_before_the_200(filled: Tier) -> None:
    for query, header in (("after=garbage", {}), ("", {"Last_Event_ID": "garbage"}), ("", {"Last_Event_ID": "x" * 1025})):
        answer = follow(filled, query, **header)
        assert answer.status_code == 400
        assert answer.json["error"]["code"] == "invalid_request"
    assert follow(filled, "after=77").status_code == 409


def test_a_lost_cursor_says_where_reading_works(tier: Tier) -> None:
    tier.sessions.error = CursorUnavailable("lost", "good")
    answer = follow(tier, "after=1")
    assert (answer.status_code, answer.headers["byre-earliest-cursor"]) == (409, "good")
    assert answer.headers["content-type"] == "application/json"


def test_too_many_streams_are_429() -> None:
    tier = Tier(limits=Limits(max_streams=0))
    answer = follow(tier)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert not tier.sessions.streams


def test_head_opens_no_stream(tier: Tier) -> None:
    answer = tier.call("HEAD", EVENTS, headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert not tier.sessions.streams


@pytest.mark.parametrize(
    ("accept", "stream"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("text/*", False),
        ("text/event-stream", True),
        ("Text/Event-Stream", True),
        ("text/event-stream; charset=utf-8", True),
        ("text/event-stream, */*", True),
        ("application/json, text/event-stream", True),
        ("application/json;q=0.5, text/event-stream;q=0.9", True),
        ("application/json, text/event-stream;q=0.5", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=x", False),
        ("text/event-streams", False),
    ],
)
def test_what_the_accept_header_asks_for(accept: str | None, stream: bool) -> None:
    environ = testing.create_environ(headers=None if accept is None else {"Accept": accept})
    if accept is None:
        environ.pop("HTTP_ACCEPT", None)
    assert wanted(falcon.Request(environ)) is stream


def test_unauthorized_is_what_tokens_raise() -> None:
    with pytest.raises(Unauthorized):
        FakeTokens().authenticate("nobody")


def test_a_page_looks_at_the_header_of_a_reconnecting_client_too(tier: Tier) -> None:
    answer = tier.call("GET", EVENTS, headers={"Last-Event-ID": "x" * 1025})
    assert (answer.status_code, "Last-Event-ID" in answer.json["error"]["message"]) == (400, True)
    assert tier.call("GET", EVENTS + "?after=").status_code == 200
    assert tier.call("GET", "/sessions?after=").status_code == 200
