"""`byre tail SESSION`: follows a session over the HTTP API, reconnecting where it left off.

Rules: it needs an address and a token and nothing else of this machine. A dropped connection is taken up at the last event seen;
what can't get better by waiting (no such session, a refused token) ends it with one line.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from app import dev_data
from app.cli_screen import Screen
from app.settings import Settings, SettingsError

SILENCE = 35.0
"""Seconds without a byte after which the connection counts as lost; the server speaks at least every ten."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
MOST_FAILURES = 20
"""Failed connections in a row before giving up: about three minutes."""
LONGEST_LINE = 4 << 20
"""Bytes; an event is at most 1 MiB, and JSON may escape each of its bytes."""


class Refused(Exception):
    """The server says no, and will say it again."""


class Frame(NamedTuple):
    """One server-sent event: its cursor ("" on a delta), type and data."""

    cursor: str
    type: str
    event: dict[str, Any]


def run(settings: Settings, data: Path, session: str, after: str | None) -> int:
    """Prints the session until it is closed or the user stops it; returns the exit status. Raises SettingsError."""
    url, token = settings.url, settings.token
    if not url or not token:
        ready = dev_data.read_ready(data / "ready.json") or {}
        url, token = url or ready.get("url", ""), token or ready.get("management_token", "")
    if not url or not token:
        raise SettingsError(f"no `byre dev` runs on {data}: start one, or set BYRE_URL and BYRE_TOKEN")
    screen = Screen(sys.stdout)
    failures = 0
    while True:
        try:
            for frame in frames(url, token, session, after):
                failures = 0
                after = frame.cursor or after
                screen.show(frame.type, frame.event)
                if frame.type == "session.closed":
                    return 0
        except Refused as error:
            print(f"byre: {error}", file=sys.stderr)
            return 1
        except BrokenPipeError:
            return 0  # whoever read our output has seen enough
        except (OSError, http.client.HTTPException) as error:
            failures += 1
            if failures > MOST_FAILURES:
                print(f"byre: {url} can't be reached: {error}", file=sys.stderr)
                return 1
        pause = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads clients, guards nothing


def frames(url: str, token: str, session: str, after: str | None) -> Iterator[Frame]:
    """The frames of one connection, until it ends. Raises Refused, OSError or HTTPException."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=SILENCE)
    try:
        path = f"{parts.path}/sessions/{quote(session, safe='')}/events"
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {token}"}
        connection.request("GET", path + (f"?after={quote(after, safe='')}" if after else ""), headers=headers)
        response = connection.getresponse()
        if response.status >= 500 or response.status == 429:
            raise OSError(f"status {response.status}")
        if response.status != 200:
            raise Refused(_reason(response))
        yield from _parse(response)
    finally:
        connection.close()


def _parse(response: http.client.HTTPResponse) -> Iterator[Frame]:
    fields: dict[str, str] = {}
    while raw := response.readline(LONGEST_LINE):
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if "data" in fields:
                yield Frame(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:  # else it is a comment
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value


def _reason(response: http.client.HTTPResponse) -> str:
    try:
        return str(json.loads(response.read(65_536))["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status}"
