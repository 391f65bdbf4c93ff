"""The guarded HTTP client: for addresses that users or configuration gave us (design page 6).

Rules: https to public addresses only, unless `BYRE_OUTGOING_ALLOW` names the host: then it may be anywhere and speak plain http. A name is
resolved once, every address that comes out is judged, and the connection goes to one that was; certificate, SNI and `Host` are the name's.
Nothing is followed, kept, or taken from the environment: no redirects, no cookies, no proxies, no connection used twice. Each request
has one time limit for all of it, and limits for its answer's headers and body. An error says whether anything was sent.
"""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.outgoing.addresses import public
from app.outgoing.allow import Allow, normal_host
from app.outgoing.errors import Lost, Refused, TooMuch
from app.outgoing.resolve import resolve
from app.outgoing.wire import PIECE, Deadline, Wire, dial, secure

CONNECT_SECONDS = 10.0
"""For the lookup, for each address that is tried, and for TLS."""
HEADER_BYTES = 64 * 1024
ANSWER_BYTES = 1 << 20
SECONDS = 30.0
MOST_URL = 2048
USER_AGENT = "byre"
_OURS = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer", "accept-encoding"}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}\Z")  # a token of RFC 9110, section 5.6.2
_VALUE = re.compile(r"[\x20-\x7e\x80-\xff\t]{0,8192}\Z")


class Target(NamedTuple):
    """A checked address. `allowed`: the deployment names its host."""

    secure: bool
    host: str
    port: int
    path: str
    allowed: bool

    @property
    def authority(self) -> str:
        """What stands in the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class Answer(NamedTuple):
    """A whole answer. Header names are in lower case; of a repeated one the last counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Reply:
    """An answer whose body is still to be read. `status`, `headers` as of `Answer`."""

    def __init__(self, response: http.client.HTTPResponse, limit: int) -> None:
        self._response, self._left = response, limit
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read(self) -> bytes:
        """The next piece of the body, b"" at its end. Raises Lost, TooMuch."""
        with _lost_if_broken():
            piece = self._response.read1(PIECE)
        if not piece and self._response.length:
            raise Lost("the answer broke off")
        self._left -= len(piece)
        if self._left < 0:
            raise TooMuch("the answer is too large")
        return piece


class Outgoing:
    """All outgoing requests of a process. Keeps nothing between two of them; safe for threads and greenlets.

    `allow` as in `BYRE_OUTGOING_ALLOW`; raises ValueError for a wrong entry.
    """

    def __init__(self, allow: Sequence[str] = (), *, lookup: Callable[..., Any] | None = None) -> None:
        self._allow = Allow(allow)
        self._lookup = {"ask": lookup} if lookup else {}

    def check(self, url: str) -> Target:
        """What `url` means, as far as it can be judged without asking anybody. Raises Refused."""
        if len(url) > MOST_URL or re.search(r"[^\x21-\x7e]", url):
            raise Refused("the address has characters that don't belong there, or too many")
        try:
            parts = urlsplit(url)
            host, port = normal_host(parts.hostname or ""), parts.port
        except ValueError:
            raise Refused("the address isn't one") from None
        if parts.scheme not in ("https", "http") or parts.username is not None or parts.password is not None or port == 0:
            raise Refused("the address must be https://HOST/PATH, without a user")
        encrypted = parts.scheme == "https"
        port = port or (443 if encrypted else 80)
        allowed = (host, port) in self._allow
        if not encrypted and not allowed:
            raise Refused("the address must be https")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(encrypted, host, port, path, allowed)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        seconds: float = SECONDS,
        limit: int = ANSWER_BYTES,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """One request and its whole answer, whatever its status. Raises as `open` does."""
        with self.open(method, url, headers, body, seconds=seconds, limit=limit, stopped=stopped) as reply:
            pieces = []
            while piece := reply.read():
                pieces.append(piece)
            return Answer(reply.status, reply.headers, b"".join(pieces))

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        seconds: float = SECONDS,
        limit: int = ANSWER_BYTES,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Reply]:
        """One request; its answer is read within the block. `seconds` is for all of it, `limit` in bytes for the body; `stopped` is asked
        a few times a second, and ends it.

        Raises Refused and NotSent before anything was sent, Lost and TooMuch after.
        """
        target = self.check(url)
        check_headers(headers)
        given = {"User-Agent": USER_AGENT, **headers}
        deadline = Deadline(seconds, stopped)
        wire = Wire(self._connect(target, deadline), deadline, HEADER_BYTES)
        try:
            with _lost_if_broken():
                response = _exchange(wire, target, method, given, body)
            # frames of chunks cost something too
            wire.allowance += 2 * limit
            with response:
                yield Reply(response, limit)
        finally:
            wire.hang_up()

    def _connect(self, target: Target, deadline: Deadline) -> Any:
        found = resolve(target.host, target.port, deadline.within(CONNECT_SECONDS), **self._lookup)
        if not target.allowed and not all(public(str(address[0])) for _, address in found):
            raise Refused("the address isn't public")
        sock = dial(found, deadline, CONNECT_SECONDS)
        if not target.secure:
            return sock
        return secure(sock, self._allow.tls, target.host, deadline.within(CONNECT_SECONDS))


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises Refused for a header that can't be sent, or is this client's own to set."""
    for name, value in headers.items():
        if not _NAME.match(name) or not _VALUE.match(value):
            raise Refused("a header can't be sent")
        if name.lower() in _OURS:
            raise Refused("a header is not for the caller to set")


def _exchange(wire: Wire, target: Target, method: str, headers: Mapping[str, str], body: bytes) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = wire  # all of a socket that is used
    connection.putrequest(method, target.path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", target.authority)
    for name, value in headers.items():
        connection.putheader(name, value.encode("latin-1"))
    if body or method in ("POST", "PUT", "PATCH"):
        connection.putheader("Content-Length", str(len(body)))
    connection.putheader("Connection", "close")
    connection.endheaders(body or None)
    return connection.getresponse()


@contextlib.contextmanager
def _lost_if_broken() -> Iterator[None]:
    try:
        yield
    except (http.client.HTTPException, ValueError):
        raise Lost("the answer isn't HTTP, or broke off") from None
