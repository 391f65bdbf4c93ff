"""Lines from a pipe, whatever comes through it.

Rules: at most one line of LIMIT bytes and one chunk are in memory. A longer line becomes one ProtocolError with its beginning,
at the moment it passes the limit, and its rest is dropped; who asks for it gets both ends of it when it is over. Nothing is
read ahead, so a reader that is slow stops the writer. Bytes are not decoded here: bad UTF-8 is the adapter's to refuse.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import NamedTuple

from workers.harness.base import KEEP_OF_BAD_LINE, ProtocolError

LIMIT = 1 << 20
_CHUNK = 1 << 16


class Lost(NamedTuple):
    """A line over the limit, now over: its first and last 4 KiB, and its length in bytes."""

    head: bytes
    tail: bytes
    size: int = 0


Item = bytes | ProtocolError | Lost


class LineReader:
    """Reads lines of `fd`, which stays its owner's to close. One thread reads; `stop` may be called from any.

    With `ends` a line over the limit is a ProtocolError when it passes it, and a Lost when it is over.
    """

    def __init__(self, fd: int, limit: int = LIMIT, *, ends: bool = False) -> None:
        self._fd, self._limit, self._ends = fd, limit, ends
        self._head = self._tail = b""  # of the line that is skipped
        self._chunk = min(_CHUNK, limit)  # so that only the first line of a chunk can pass the limit
        self._parts: list[bytes] = []  # of the line that isn't complete
        self._size = 0
        self._skipping = self._at_end = self.stopped = False
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def read(self, timeout: float | None = None) -> list[Item]:
        """The lines of the next chunk without their ends, blank ones left out; [] if `timeout` seconds bring no whole one.

        A last line without an end is a line. Raises EOFError when all has been read, or after `stop`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not (self.stopped or self._at_end):
            wait = None if until is None else max(0.0, until - time.monotonic())
            ready = [fd for fd, _ in self._poll.poll(None if wait is None else wait * 1000)]
            if self._woken in ready:
                break
            if not ready:
                return []
            data = os.read(self._fd, self._chunk)
            self._at_end = not data
            found = self._split(data) if data else self._last()
            if found or (until is not None and time.monotonic() >= until):
                return found
        raise EOFError

    def stop(self) -> None:
        """Makes `read` raise EOFError, also one that waits now. What wasn't read is left in the pipe."""
        self.stopped = True
        with contextlib.suppress(OSError):
            os.write(self._wake, b".")

    def close(self) -> None:
        """Frees the reader's own descriptors; to be called by the reading thread, or when it has ended."""
        self.stopped = True
        os.close(self._woken)
        os.close(self._wake)

    def _split(self, data: bytes) -> list[Item]:
        first, *rest = data.split(b"\n")
        found: list[Item] = []
        self._gather(first, found)
        if rest:
            self._finish(found)
            found += [line for line in rest[:-1] if line and not line.isspace()]
            self._gather(rest[-1], found)
        return found

    def _gather(self, piece: bytes, found: list[Item]) -> None:
        """Adds `piece` to the line that isn't complete."""
        if self._skipping:
            self._tail = (self._tail + piece[-KEEP_OF_BAD_LINE:])[-KEEP_OF_BAD_LINE:]
            self._size += len(piece)
            return
        if not piece:
            return
        self._parts.append(piece)
        self._size += len(piece)
        if self._size > self._limit:
            line = b"".join(self._parts)
            self._head, self._tail = line[:KEEP_OF_BAD_LINE], line[-KEEP_OF_BAD_LINE:]
            found.append(ProtocolError(f"line over {self._limit} bytes", self._head, self._size))
            self._parts, self._skipping = [], True

    def _finish(self, found: list[Item]) -> None:
        if self._skipping and self._ends:
            found.append(Lost(self._head, self._tail, self._size))
        line = b"".join(self._parts)
        self._parts, self._size, self._skipping = [], 0, False
        if line and not line.isspace():
            found.append(line)

    def _last(self) -> list[Item]:
        found: list[Item] = []
        self._finish(found)
        return found
