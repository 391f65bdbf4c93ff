"""Framing of server-sent events (WHATWG HTML, section 9.2).

Rules: a frame is complete bytes that end in an empty line, so frames can be joined in any number and written at once. Each
event is framed once and the same bytes go to every client. Nothing here knows what an event means.
"""

from __future__ import annotations

_BREAKS = ("\n", "\r", "\0")


def frame(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """One event. `data` is UTF-8 text (for us JSON without line breaks); each of its lines becomes a `data:` line.

    `id` is what a client sends back as Last-Event-ID; a frame without one leaves the client's last id as it was. Raises
    ValueError if `event` or `id` holds a line break or NUL: either would let a value forge further fields.
    """
    head = b""
    if id is not None:
        head += b"id: " + _one_line(id) + b"\n"
    if event is not None:
        head += b"event: " + _one_line(event) + b"\n"
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return head + b"data: " + data + b"\n\n"


def comment(text: str = "") -> bytes:
    """A line that clients ignore: keeps proxies from cutting a quiet connection, and finds out whether the client is still
    there.
    """
    return b": " + _one_line(text) + b"\n\n"


def retry(milliseconds: int) -> bytes:
    """Tells the client how long to wait before it connects again."""
    return b"retry: %d\n\n" % milliseconds


def _one_line(text: str) -> bytes:
    if any(mark in text for mark in _BREAKS):
        raise ValueError("an SSE field may not contain a line break or NUL")
    return text.encode()
