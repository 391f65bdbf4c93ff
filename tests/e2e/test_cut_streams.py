"""Streams that are cut: at any byte, and with Redis killed in the middle. What a client puts together is the log, or it is told."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.support.dev import Stack, running, until


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(env={"BYRE_LEASE_SECONDS": "3", "BYRE_SWEEP_SECONDS": "1"}) as stack:
        yield stack


def connect(stack: Stack, session: str, cursor: str | None) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    address = urllib.parse.urlsplit(stack.info["url"])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    headers = {"Authorization": f"Bearer {stack.info['management_token']}", "Accept": "text/event-stream"}
    if cursor:
        headers["Last-Event-ID"] = cursor
    connection.request("GET", f"/sessions/{session}/events", headers=headers)
    return connection, connection.getresponse()


def frames(raw: bytes) -> list[tuple[str, str]]:
    """Id and event id of each complete frame that has an id, as a client parses them from what it got."""
    out = []
    for block in raw.split(b"\n\n")[:-1]:
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line and not line.startswith(b":"))
        if b"id" in fields:
            out.append((fields[b"id"].decode(), json.loads(fields[b"data"])["id"]))
    return out


def test_a_stream_cut_at_each_byte_goes_on_exactly(stack: Stack) -> None:
    session = stack.session()
    stack.turn(session, "/emit 195 40 0")
    log = [e["id"] for e in stack.events(session)]
    assert len(log) >= 198
    connection, response = connect(stack, session, None)
    raw = b""
    while len(frames(raw)) < len(log):
        raw += response.read1(65536)
    connection.close()
    rest: dict[str, list[str]] = {}
    for cursor, _ in frames(raw):
        connection, response = connect(stack, session, cursor)
        tail = b""
        want = len(log) - [c for c, _ in frames(raw)].index(cursor) - 1
        while len(frames(tail)) < want:
            tail += response.read1(65536)
        connection.close()
        rest[cursor] = [event for _, event in frames(tail)]
    end, seen = -1, frames(b"")
    for cut in range(len(raw) + 1):
        last = raw.rfind(b"\n\n", 0, cut)
        if last != end:  # what comes after the last whole frame isn't looked at
            end, seen = last, frames(raw[:cut])
        whole = [event for _, event in seen] + (rest[seen[-1][0]] if seen else log)
        assert whole == log, f"cut at byte {cut}"


def test_redis_killed_in_the_middle_of_a_stream(stack: Stack) -> None:
    session = stack.session()
    kept: list[tuple[str, str]] = []
    told: list[str] = []
    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(stack, session, kept, told, stop), daemon=True)
    thread.start()
    stack.say(session, "/emit 200 40 50")
    until("half of it is seen", lambda: len(kept) > 100)
    os.kill(stack.reread()["redis_pid"], signal.SIGKILL)
    until("the turn has ended", lambda: settled(stack, session), seconds=60)
    resumed = stack.call("GET", f"/sessions/{session}").json["status"] != "interrupted"
    if not resumed:
        assert stack.call("POST", f"/sessions/{session}/resume").status == 200
    stack.turn(session, "/say the end")
    log = [e["id"] for e in stack.events(session)]
    until("the client has all of it", lambda: [e for _, e in kept] == log, seconds=40)
    stop.set()
    assert len(log) == len(set(log))


def settled(stack: Stack, session: str) -> bool:
    answer = stack.call("GET", f"/sessions/{session}")
    return answer.status == 200 and answer.json["status"] in ("interrupted", "idle", "failed")


def follow(stack: Stack, session: str, kept: list[tuple[str, str]], told: list[str], stop: threading.Event) -> None:
    """A client as it should be: reconnects with its last id, and goes back to the earliest good cursor when it is told."""
    while not stop.is_set():
        cursor = kept[-1][0] if kept else None
        try:
            connection, response = connect(stack, session, cursor)
            if response.status == 409:
                good = response.headers["Byre-Earliest-Cursor"]
                told.append(good)
                places = [c for c, _ in kept]
                del kept[places.index(good) + 1 if good in places else 0 :]
            elif response.status == 200:
                raw = b""
                while not stop.is_set() and (piece := response.read1(65536)):
                    raw += piece
                    complete = raw.rfind(b"\n\n") + 2
                    kept += frames(raw[:complete])
                    raw = raw[complete:]
            connection.close()
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
