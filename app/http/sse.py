"""Answers that go on: a follower's frames as a response body.

Rules:
- The first bytes leave at once, so that a client knows that it is connected, also where no event exists.
- A silent connection gets a comment every `heartbeat` seconds; that write is what finds out that a client has gone.
- The token is asked again at that pace, on busy streams too; once it is refused the stream ends.
- Whatever ends it (client gone or too slow, log over, token revoked, process draining), the follower is closed and its place is
  free again.
- What an open stream keeps in memory is this object and the server's connection, nothing of the request.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import falcon
import structlog

from app.core import sse
from app.core.errors import ByreError, Overloaded, Unauthorized
from app.core.principal import Principal
from app.http.auth import Credential, still
from app.http.deps import Authenticator, Limits, Stream
from app.http.drain import Drain

log = structlog.get_logger(__name__)

EVENT_STREAM = "text/event-stream"
RETRY = sse.retry(2000)
"""How long a client waits before it connects again when the connection drops."""
GOING_AWAY = sse.retry(1000)
"""Sent before a draining process ends a stream: another one can take it over soon."""
HEARTBEAT = sse.comment("hb")
RECHECK_SECONDS = 1.0
"""How old what is known of a token may be when a stream asks again."""
_KEPT = ("REQUEST_METHOD", "RAW_URI", "SERVER_PROTOCOL", "REMOTE_ADDR")
"""What an access log reads of a WSGI environment after the response."""


class Followers:
    """All open streams of one process: counted, bounded per process and token, ended when the process drains."""

    def __init__(self, tokens: Authenticator, limits: Limits, drain: Drain, monotonic: Callable[[], float]) -> None:
        self.tokens = tokens
        self.limits = limits
        self.drain = drain
        self.monotonic = monotonic
        self._lock = threading.Lock()
        self._by_token: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def attach(
        self,
        resp: falcon.Response,
        env: dict[str, Any],
        shown: Credential,
        caller: Principal,
        open: Callable[[], Stream],
        *,
        first: bytes = RETRY,
    ) -> None:
        """Makes `resp` the stream that `open` gives. Raises Overloaded if a bound is reached, and whatever `open` raises:
        both before the 200.
        """
        self.enter(caller)
        try:
            body = EventBody(self, open(), shown, caller, env, first)
        except BaseException:
            self.leave(caller)
            raise
        self.drain.register(body, body.stop)
        head(resp)
        resp.stream = body

    def by_tenant(self) -> dict[str, int]:
        """Open streams of each tenant that has any."""
        with self._lock:
            return dict(self._by_tenant)

    def enter(self, caller: Principal) -> None:
        """Takes one place, which its taker leaves again. Raises Overloaded if there is none."""
        token_id = caller.token_id
        with self._lock:
            if self._open >= self.limits.max_streams:
                raise Overloaded("this process holds as many streams as it can")
            if self._by_token[token_id] >= self.limits.max_streams_per_token:
                raise Overloaded(f"a token can hold {self.limits.max_streams_per_token} streams on a process")
            self._open += 1
            self._by_token[token_id] += 1
            self._by_tenant[caller.tenant] += 1

    def leave(self, caller: Principal) -> None:
        """Frees one place."""
        with self._lock:
            self._open -= 1
            for counts, name in ((self._by_token, caller.token_id), (self._by_tenant, caller.tenant)):
                counts[name] -= 1
                if counts[name] <= 0:
                    del counts[name]


class EventBody:
    """The body of one SSE response, for the server to iterate and to close."""

    __slots__ = ("_caller", "_env", "_first", "_followers", "_next_beat", "_next_check", "_over", "_shown", "_stream")

    def __init__(
        self,
        followers: Followers,
        stream: Stream,
        shown: Credential,
        caller: Principal,
        env: dict[str, Any],
        first: bytes,
    ) -> None:
        now = followers.monotonic()
        self._followers: Followers | None = followers
        self._stream = stream
        self._shown = shown
        self._caller = caller
        self._env: dict[str, Any] | None = env
        self._first = first
        self._next_beat = now + followers.limits.heartbeat
        self._next_check = self._next_beat
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next bytes to write; blocks. Ends with StopIteration."""
        followers = self._followers
        if followers is None or self._over:
            raise StopIteration
        if self._first:
            first, self._first = self._first, b""
            self._settle(followers.limits.slow)
            return first
        while True:
            if followers.drain.active:
                return self._go_away()
            now = followers.monotonic()
            try:
                data = self._stream.read(max(0.0, min(self._next_beat, self._next_check) - now))
            except EOFError:
                if followers.drain.active:
                    return self._go_away()
                raise StopIteration from None
            except ByreError as error:
                # The status is out already: the client comes back with its cursor and is told then.
                log.warning("stream_cut", error=error.message)
                raise StopIteration from error
            now = followers.monotonic()
            if now >= self._next_check:
                self._next_check = now + followers.limits.heartbeat
                if not self._still_allowed(followers.tokens):
                    raise StopIteration
            if data or now >= self._next_beat:
                self._next_beat = now + followers.limits.heartbeat
                return data or HEARTBEAT

    def stop(self) -> None:
        """Wakes the reader, so that it sees that the process drains."""
        self._stream.close()

    def close(self) -> None:
        """Called by the server however the response ended."""
        followers, self._followers = self._followers, None
        if followers is None:
            return
        followers.drain.forget(self)
        followers.leave(self._caller)
        self._stream.close()

    def _go_away(self) -> bytes:
        self._over = True
        return GOING_AWAY

    def _still_allowed(self, tokens: Authenticator) -> bool:
        try:
            still(tokens, self._shown, RECHECK_SECONDS)
        except Unauthorized:
            return False
        except ByreError:
            return True  # it can't be asked just now, which is no reason to cut everybody off
        return True

    def _settle(self, slow: float) -> None:
        """Prepares for a long stay: a time limit on the connection's writes, and nothing kept of the request. The server holds on
        to its environment until the response ends, which for a stream is hours.
        """
        env, self._env = self._env, None
        if env is not None:
            if (connection := env.get("gunicorn.socket")) is not None:
                connection.settimeout(slow)
            kept = {name: env[name] for name in _KEPT if name in env}
            env.clear()
            env.update(kept)


def head(resp: falcon.Response) -> None:
    """The headers of an event stream: nothing between us and the client may keep or gather it."""
    resp.content_type = EVENT_STREAM
    resp.set_header("Cache-Control", "no-store")
    resp.set_header("X-Accel-Buffering", "no")


def wanted(req: falcon.Request) -> bool:
    """Whether the Accept header names event streams, and likes JSON no better."""
    accept = req.env.get("HTTP_ACCEPT", "").lower()
    if EVENT_STREAM not in accept:
        return False
    liked = dict(map(_preference, accept.split(",")))
    quality = liked.get(EVENT_STREAM, 0.0)
    return quality > 0 and quality >= liked.get("application/json", 0.0)


def _preference(part: str) -> tuple[str, float]:
    kind, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return kind, float(value)
            except ValueError:
                return kind, 0.0
    return kind, 1.0
