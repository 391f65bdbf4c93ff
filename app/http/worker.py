"""How gunicorn's gevent worker treats one request: fair to the others, bounded in time, and never cut off in its answer.

Rules:
- After each request the greenlet lets the others run: under keep-alive a busy connection would otherwise starve them for a
  second.
- What the application left unread of a body is thrown away after the answer, up to `DISCARD_BYTES`; else a client that sends
  all before it reads would see a reset instead of its 413. Beyond that, or past `DISCARD_SECONDS`, the connection ends.
- A body arrives within `BODY_SECONDS`, and an answer is taken within `SEND_SECONDS`, or the connection ends.
- A request that isn't HTTP is refused in the shape that every other error has.

`app/gunicorn_worker.py` builds on this: it adds how the process stops.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import gevent
import structlog
from gunicorn import util
from gunicorn.http import errors as faults
from gunicorn.workers.ggevent import GeventWorker

log = structlog.get_logger(__name__)

DISCARD_BYTES = 16 << 20
DISCARD_SECONDS = 10.0
BODY_SECONDS = 60.0
SEND_SECONDS = 300.0
_PIECE = 1 << 16

_BROKEN = (500, "Internal Server Error")
_REASONS: tuple[tuple[type[Exception], int, str], ...] = (
    (faults.InvalidResponseHeader, *_BROKEN),
    (faults.InvalidResponseHeaderName, *_BROKEN),
    (faults.LimitRequestLine, 414, "URI Too Long"),
    (faults.LimitRequestHeaders, 431, "Request Header Fields Too Large"),
    (faults.ExpectationFailed, 417, "Expectation Failed"),
    (faults.UnsupportedTransferCoding, 501, "Not Implemented"),
    (faults.ParseException, 400, "Bad Request"),
)


class RequestWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no types
    """The part of a server process that handles single requests."""

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Answers one request. Raises StopIteration when the connection can't take another one."""
        sock.settimeout(SEND_SECONDS)
        if _unread(req):
            req.body = _TimedBody(req.body)
        try:
            super().handle_request(listener_name, req, sock, addr)
        except StopIteration:
            _discard(req)
            raise
        except TimeoutError:
            raise StopIteration from None  # the client didn't take its answer
        if not _discard(req):
            raise StopIteration
        gevent.sleep(0)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answers what could not be read as a request, and what failed outside the application."""
        # Imported here: gunicorn's master loads this module before a server process makes sockets cooperative, and must not
        # load with it what opens connections.
        from app.http import errors
        from app.http.requests import request_id

        status, reason = next(((status, reason) for kind, status, reason in _REASONS if isinstance(exc, kind)), _BROKEN)
        known = request_id(None)
        if status == 500:
            log.error("request_failed", request_id=known, exc_info=exc)
        else:
            log.info("request_refused", request_id=known, status=status, error=type(exc).__name__)
        code, message = ("invalid_request", reason) if status != 500 else ("brain_error", "the server failed")
        body = errors.body(getattr(req, "path", None) or "/", code, message, known)
        head = (
            f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"X-Request-ID: {known}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            client.settimeout(1.0)
            client.sendall(head.encode() + body)
            util.close_graceful(client, timeout=1.0)


class _TimedBody:
    """A request's body that has to arrive in time; to gunicorn and the application the same as the one it wraps."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self._until = time.monotonic() + BODY_SECONDS

    @property
    def reader(self) -> Any:
        return self._body.reader

    @property
    def failed(self) -> bool:
        return bool(self._body.failed)

    def read(self, size: int | None = None) -> bytes:
        """As a file's. Raises TimeoutError when the time is over, and the errors of gunicorn's body."""
        left = max(0.001, self._until - time.monotonic())
        with gevent.Timeout(left, TimeoutError("the body took too long")):
            data: bytes = self._body.read(size)
            return data


def _unread(req: Any) -> bool:
    """Whether there may be more of the body: unless it is known to have ended, there may."""
    return req.body.reader is None or getattr(req.body.reader, "length", 1) != 0


def _discard(req: Any) -> bool:
    """Throws away the rest of the body. Whether the connection then stands at the start of the next request."""
    if req.body.failed:
        return False
    if not _unread(req):
        return True
    thrown = 0
    try:
        with gevent.Timeout(DISCARD_SECONDS, TimeoutError()):
            while thrown <= DISCARD_BYTES:
                piece = req.body.read(_PIECE)
                if not piece:
                    return True
                thrown += len(piece)
    except Exception as error:  # noqa: BLE001 - broken framing, a lost connection, too slow: in each case it ends here
        log.debug("body_discarded", error=repr(error))
    return False
