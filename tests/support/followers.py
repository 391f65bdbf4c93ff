"""The measurement of many followers, short for the tests and whole for the benchmarks."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.support.crowd import crowd
from tests.support.dev import Stack


class Figures(NamedTuple):
    """`kib_each`: growth of the API process by a follower when all are connected, and at the most; REST times in milliseconds."""

    complete: int
    wrong: int
    kib_each: float
    kib_each_at_most: float
    rest_p50: float
    rest_p95: float
    rest_max: float
    requests: int
    seconds: float


def rss(pid: int) -> int:
    """Resident KiB of a process."""
    return int(
        next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1]
    )


def server_of(stack: Stack) -> int:
    """The one server process below the API's master."""
    master = stack.info["api_pid"]
    (pid,) = map(int, Path(f"/proc/{master}/task/{master}/children").read_text().split())
    return pid


def measure(stack: Stack, followers: int, events: int, rate: int) -> Figures:
    """`events` messages at `rate` a second to `followers` streams of one session, with GETs of it over one connection meanwhile."""
    session = stack.session()
    stack.turn(session, "/say warm")
    server, token = server_of(stack), stack.info["management_token"]
    times: list[float] = []
    over = threading.Event()

    def ask() -> None:
        url = urlsplit(stack.info["url"])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=30)
        while not over.wait(0.02):
            began = time.monotonic()
            connection.request("GET", f"/sessions/{session}", headers={"Authorization": f"Bearer {token}"})
            assert connection.getresponse().read()
            times.append((time.monotonic() - began) * 1000)
        connection.close()

    before = rss(server)
    with crowd(stack.info["url"], f"/sessions/{session}/events", token, followers=followers, events=events) as process:
        connected = peak = rss(server)
        asking = threading.Thread(target=ask)
        asking.start()
        began = time.monotonic()
        try:
            stack.say(session, f"/emit {events} 100 {rate}")
            lines: list[str] = []
            reading = threading.Thread(target=lambda: lines.append(process.stdout.readline() if process.stdout else ""))
            reading.start()
            while reading.is_alive():
                reading.join(0.5)
                peak = max(peak, rss(server))
            took = time.monotonic() - began
        finally:
            over.set()
            asking.join()
    outcome = json.loads(lines[0])
    ordered = sorted(times)
    return Figures(
        complete=outcome["complete"],
        wrong=outcome["wrong"],
        kib_each=(connected - before) / followers,
        kib_each_at_most=(peak - before) / followers,
        rest_p50=statistics.median(ordered),
        rest_p95=ordered[int(len(ordered) * 0.95)],
        rest_max=ordered[-1],
        requests=len(ordered),
        seconds=took,
    )
