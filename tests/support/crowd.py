"""Many followers of one session from one process, so that the one who measures isn't disturbed: `python -m tests.support.crowd`.

Reads a JSON line {"url", "path", "token", "followers", "events"} from stdin, says "connected" on stdout when all have their first bytes,
and then, when all have seen that many numbered messages or the time is over, a JSON line {"complete", "wrong"}.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.support.dev import environment

_NUMBER = re.compile(rb'"text":"(\d+) x*"')
PATIENCE = 120.0


class _Follower:
    """One open stream; `seen` is the last number of an unbroken sequence from 1."""

    def __init__(self, given: dict[str, Any]) -> None:
        url = urlsplit(given["url"])
        self.socket = socket.create_connection((url.hostname or "", url.port or 80), timeout=60)
        head = f"GET {given['path']} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {given['token']}\r\nAccept: text/event-stream\r\n\r\n"
        self.socket.sendall(head.encode())
        self.rest = self.socket.recv(4096)
        assert self.rest.startswith(b"HTTP/1.1 200"), self.rest
        self.socket.setblocking(False)
        self.seen, self.wrong = 0, 0

    def take(self) -> bool:
        """Reads what has come; False at the end of the stream."""
        data = self.socket.recv(1 << 18)
        text = self.rest + data
        at = 0
        for found in _NUMBER.finditer(text):
            at = found.end()
            if int(found[1]) == self.seen + 1:
                self.seen += 1
            else:
                self.wrong += 1
        self.rest = text[max(at, len(text) - 4096) :]
        return bool(data)


def main() -> None:
    given = json.loads(sys.stdin.readline())
    followers = [_Follower(given) for _ in range(given["followers"])]
    print("connected", flush=True)
    waiting = selectors.DefaultSelector()
    for each in followers:
        waiting.register(each.socket, selectors.EVENT_READ, each)
    moved = time.monotonic()
    left = len(followers)
    while left and time.monotonic() - moved < PATIENCE:
        for key, _ in waiting.select(1.0):
            moved = time.monotonic()
            if not key.data.take() or key.data.seen >= given["events"]:
                waiting.unregister(key.fileobj)
                left -= 1
    complete = sum(each.seen >= given["events"] for each in followers)
    print(json.dumps({"complete": complete, "wrong": sum(each.wrong for each in followers)}), flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def crowd(url: str, path: str, token: str, *, followers: int, events: int) -> Iterator[subprocess.Popen[str]]:
    """A crowd that is connected; the line of its outcome comes on its stdout."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.crowd"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin
            assert process.stdout
            given = {"url": url, "path": path, "token": token, "followers": followers, "events": events}
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "connected\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main()
