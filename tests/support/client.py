"""A client of a running API, for tests: requests, streams, and what tests do with sessions.

Whatever events it reads are held against their schemas.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from tests.support.event_schemas import check

ENDED = ("turn.completed", "turn.failed", "turn.interrupted")
T = TypeVar("T")


class Reply(NamedTuple):
    """One answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def until(what: str, ask: Callable[[], T], *, seconds: float = 30.0, pause: float = 0.05) -> T:
    """The first true answer of `ask`. Fails, saying `what` was waited for, when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not in {seconds:g} s: {what}")
        time.sleep(pause)


class Client:
    """`info` has the `url` of an API and a `management_token` for it, as the ready file of `byre dev` does."""

    info: dict[str, Any]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Reply:
        """One request, with the management token unless another (or "" for none) is given; `body` is sent as JSON."""
        with self._connection(timeout) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers(token, body, headers))
            response = connection.getresponse()
            data = response.read()
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, data)

    def stream(
        self, path: str, *, token: str | None = None, headers: dict[str, str] | None = None, timeout: float = 30.0
    ) -> Iterator[dict[str, str]]:
        """The frames of an SSE stream as their fields, comments and `retry:` too (under "" and "retry"), until it ends.

        `timeout` is the longest silence.
        """
        accept = {"Accept": "text/event-stream", **(headers or {})}
        with self._connection(timeout) as connection:
            connection.request("GET", path, None, self._headers(token, None, accept))
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read(300))
            fields: dict[str, str] = {}
            while line := response.readline().decode():
                name, _, value = line.rstrip("\r\n").partition(":")
                if line.strip():
                    value = value.removeprefix(" ")
                    fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
                elif fields:
                    yield fields
                    fields = {}

    # Sessions, as tests of other parts need them

    def session(self, harness: str = "script", **config: Any) -> str:
        """A new session's id."""
        reply = self.call("POST", "/sessions", {"harness": harness, "config": {"model": "script-1", "tools": [], **config}})
        assert reply.status == 201, reply
        return str(reply.json["id"])

    def say(self, session: str, text: str, **more: Any) -> dict[str, Any]:
        """Sends a message; returns its event."""
        reply = self.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": text, **more})
        assert reply.status == 202, reply
        event: dict[str, Any] = reply.json
        check(event)
        return event

    def events(self, session: str, after: str | None = None) -> list[dict[str, Any]]:
        """All events behind `after`, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            where = f"&after={quote(after, safe='')}" if after else ""
            reply = self.call("GET", f"/sessions/{session}/events?limit=1000{where}")
            assert reply.status == 200, reply
            page = reply.json
            for event in page["events"]:
                check(event)
            found += page["events"]
            after = page["next_cursor"] or after
            if len(page["events"]) < 1000:
                return found

    def turn(self, session: str, text: str, *, seconds: float = 60.0) -> list[dict[str, Any]]:
        """Sends a message and waits until its turn has ended; returns the events behind the message."""
        cursor = str(self.say(session, text)["cursor"])

        def ended() -> list[dict[str, Any]]:
            events = self.events(session, cursor)
            return events if any(event["type"] in ENDED for event in events) else []

        return until(f"the turn of {text!r} ends", ended, seconds=seconds)

    def interrupt(self, session: str, **more: Any) -> str:
        """Interrupts what runs; the status that was answered."""
        reply = self.call("POST", f"/sessions/{session}/events", {"type": "user.interrupt", **more})
        assert reply.status == 202, reply
        return str(reply.json["status"])

    def status(self, session: str) -> str:
        """The session's status."""
        reply = self.call("GET", f"/sessions/{session}")
        assert reply.status == 200, reply
        return str(reply.json["status"])

    def becomes(self, session: str, *wanted: str, seconds: float = 60.0) -> str:
        """Waits until the session's status is one of `wanted`."""
        return until(f"{session} is {wanted}", lambda: (now := self.status(session)) in wanted and now, seconds=seconds) or ""

    def occurs(self, session: str, kind: str, after: str | None = None, *, seconds: float = 60.0) -> dict[str, Any]:
        """Waits for an event of type `kind` behind `after`; the first one."""

        def look() -> dict[str, Any] | None:
            return next((event for event in self.events(session, after) if event["type"] == kind), None)

        return until(f"{kind} in {session}", look, seconds=seconds) or {}

    def follow(self, session: str, after: str | None = None, *, seconds: float = 60.0) -> Iterator[dict[str, Any]]:
        """The events of a session's stream, deltas too, until it ends. Fails when no event comes for `seconds`."""
        where = f"?after={quote(after, safe='')}" if after else ""
        heard = time.monotonic()
        for frame in self.stream(f"/sessions/{session}/events{where}", timeout=seconds):
            assert time.monotonic() - heard < seconds, f"no event in {seconds:g} s"
            if "data" in frame:
                heard = time.monotonic()
                event = json.loads(frame["data"])
                check(event)
                assert frame["event"] == event["type"]
                assert frame.get("id") == event.get("cursor")
                yield event

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[http.client.HTTPConnection]:
        parts = urlsplit(self.info["url"])
        assert parts.hostname
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        try:
            yield connection
        finally:
            connection.close()

    def _headers(self, token: str | None, body: Any, more: dict[str, str] | None) -> dict[str, str]:
        headers = dict(more or {})
        token = self.info["management_token"] if token is None else token
        if token:
            headers.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        return headers
