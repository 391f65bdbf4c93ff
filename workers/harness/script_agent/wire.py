"""JSON lines in and out: commands from the worker on stdin, outputs to it on stdout.

Rules: a command that names a turn counts for that turn only, so a late interrupt can't end the next one. Waiting is done here
and nowhere else. Output is written before anything is waited for.

In: `{"type": "turn", "turn_id", "purpose", "inputs": [{"id", "text", "images"}], "task_title", "merge_ref"}`,
`{"type": "steer", "turn_id", "id", "text", "images"}`, `{"type": "interrupt", "turn_id"}`.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from typing import Any

BATCH = 1 << 16  # bytes of output that are put together before a write
_LINE = 1_000_000  # bytes of a line: a little less than the worker takes (lines.py)
_SHORTER = (200_000, 50_000, 5_000, 500)  # characters of a text in a line that is too long, tried in turn


class Interrupted(Exception):
    """The worker ended the turn that runs."""


class Gone(Exception):
    """The worker closed our input: nobody is there to play for."""


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return json.encoder.encode_basestring(text)


def encoded(text: str) -> bytes:
    """UTF-8; half surrogate pairs, which JSON can carry, become question marks."""
    return text.encode("utf-8", "replace")


def shortened(value: Any, most: int) -> Any:
    """`value` (as JSON has them) with the middle of each text over `most` characters left out."""
    if isinstance(value, str) and len(value) > most:
        half = most // 2
        return f"{value[:half]}\n[... {len(value) - 2 * half} characters left out ...]\n{value[-half:]}"
    if isinstance(value, dict):
        return {name: shortened(part, most) for name, part in value.items()}
    return [shortened(part, most) for part in value] if isinstance(value, list) else value


def _line(kind: str, fields: dict[str, Any]) -> bytes:
    return encoded(json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":")) + "\n")


class Wire:
    """Both directions, on two descriptors."""

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        self._source, self._sink = source, sink
        self._half = b""
        self._turns: deque[dict[str, Any]] = deque()
        self._early: list[dict[str, Any]] = []
        self.steers: deque[dict[str, Any]] = deque()
        self.turn_id: str | None = None
        self._interrupted = False

    def next_turn(self) -> dict[str, Any]:
        """Waits for a turn and makes it the running one. Raises Gone."""
        self.turn_id, self._interrupted = None, False
        self.steers.clear()
        while not self._turns:
            self.wait(None)
        turn = self._turns.popleft()
        self.turn_id = turn["turn_id"]
        early, self._early = self._early, []
        for command in early:
            self._obey(command)
        return turn

    def send(self, kind: str, **fields: Any) -> None:
        """Writes one output; if its line would pass the worker's limit, long texts in it lose their middle."""
        line = _line(kind, fields)
        for most in _SHORTER:
            if len(line) <= _LINE:
                break
            line = _line(kind, shortened(fields, most))
        self.write(line)

    def write(self, data: bytes | bytearray) -> None:
        """Writes `data` as it is; waits as long as nobody reads it. Raises Gone."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._sink, left) :]
        except BrokenPipeError as error:
            raise Gone from error

    def check(self) -> None:
        """Hears what has come in. Raises Interrupted or Gone."""
        self.wait(0.0)

    def wait(self, seconds: float | None, *descriptors: int) -> list[int]:
        """Waits until `seconds` (None: for ever) are over, one of `descriptors` can be read, or without a turn a command came.

        Answers the descriptors that can be read. Raises Interrupted or Gone.
        """
        until = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        for fd in (self._source, *descriptors):
            poll.register(fd, select.POLLIN)
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = [fd for fd, _ in poll.poll(None if left is None else left * 1000)]
            if self._source in ready:
                ready.remove(self._source)
                self._hear()
            if self._interrupted:
                raise Interrupted
            if ready or left == 0.0 or (self.turn_id is None and self._turns):
                return ready

    def _hear(self) -> None:
        data = os.read(self._source, 1 << 16)
        if not data:
            raise Gone
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["type"] == "turn":
                self._turns.append(command)
            elif any(turn["turn_id"] == command.get("turn_id") for turn in self._turns):
                self._early.append(command)  # it came right behind its turn, which hasn't begun
            else:
                self._obey(command)

    def _obey(self, command: dict[str, Any]) -> None:
        if self.turn_id is not None and command.get("turn_id") == self.turn_id:
            if command["type"] == "interrupt":
                self._interrupted = True
            elif command["type"] == "steer":
                self.steers.append(command)
