"""A small client of the Brain API: sessions and their events, with httpx.

Rules: whatever is repeated is safe to repeat; waits between tries grow and have a bound; a stream that breaks goes on behind the last
cursor, so that no event is missed and none comes twice.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

TRIES = 8
LONGEST_WAIT = 8.0  # seconds
SILENCE = 30.0  # seconds; the server says something every ten


class Brain:
    """One server and one token. Methods raise httpx.HTTPError when it is refused, or when no try has worked."""

    def __init__(self, url: str, token: str) -> None:
        self.http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(10.0, read=SILENCE),
            trust_env=False,
        )

    def open(self, harness: str, model: str, **config: Any) -> str:
        """A new session's id. It isn't repeated: a second try could make a second session."""
        answer = self.http.post("/sessions", json={"harness": harness, "config": {"model": model, "tools": [], **config}})
        return str(answer.raise_for_status().json()["id"])

    def say(self, session: str, text: str, key: str | None = None) -> dict[str, Any]:
        """Sends a message and answers its event. The key makes it safe to send again: it runs once."""
        body = {"type": "user.message", "text": text, "key": key or uuid.uuid4().hex}
        for attempt in range(TRIES):
            try:
                answer = self.http.post(f"/sessions/{session}/events", json=body)
            except httpx.TransportError:
                if attempt == TRIES - 1:
                    raise
            else:
                if answer.status_code not in (429, 503) or attempt == TRIES - 1:
                    return dict(answer.raise_for_status().json())
            pause(attempt)
        raise AssertionError

    def follow(self, session: str, after: str | None = None) -> Iterator[dict[str, Any]]:
        """A session's events behind a cursor (from the beginning without one), for as long as it lives, through lost connections.

        An `assistant.delta` has no cursor: what a lost connection took of those is in the `assistant.message` that follows.
        """
        failed = 0
        while True:
            try:
                for event in self._stream(session, after):
                    failed = 0
                    after = event.get("cursor", after)
                    yield event
                    if event["type"] == "session.closed":
                        return
            except httpx.HTTPStatusError as error:
                if error.response.status_code == 409:  # the place is gone: go on from where there is something
                    after = error.response.headers.get("Byre-Earliest-Cursor")
                elif error.response.status_code not in (429, 503):
                    raise
                failed += 1
            except httpx.TransportError:
                failed += 1
            if failed >= TRIES:
                raise httpx.TransportError(f"no connection in {TRIES} tries")
            pause(failed)

    def _stream(self, session: str, after: str | None) -> Iterator[dict[str, Any]]:
        where = {"after": after} if after else {}
        with self.http.stream(
            "GET", f"/sessions/{session}/events", params=where, headers={"Accept": "text/event-stream"}
        ) as answer:
            answer.raise_for_status()
            yield from data(answer.iter_lines())


def data(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON values in the `data` of server-sent events."""
    gathered: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            gathered.append(line[5:].removeprefix(" "))
        elif not line and gathered:
            yield json.loads("\n".join(gathered))
            gathered = []


def pause(attempt: int) -> None:
    """Waits before the next try: longer each time, and not all clients at once."""
    time.sleep(min(LONGEST_WAIT, 0.25 * 2**attempt) * random.uniform(0.5, 1.0))  # noqa: S311
