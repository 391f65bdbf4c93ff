"""What pywebpush wants of a `requests` session, over the guarded client.

Rules: a push service's answer is short; no more than `ANSWER_BYTES` of it are read. Errors are those of the guarded client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from app.outgoing.client import Outgoing

ANSWER_BYTES = 64 * 1024
LONGEST = 60.0


class PushAnswer(NamedTuple):
    """As much of a `requests.Response` as pywebpush reads. Header names are in lower case."""

    status_code: int
    headers: Mapping[str, str]
    text: str

    @property
    def reason(self) -> str:
        """The usual phrase for the status."""
        return HTTPStatus(self.status_code).phrase if self.status_code in list(HTTPStatus) else ""


class PushSession:
    """Give it to `WebPusher` or `webpush` as `requests_session`."""

    def __init__(self, outgoing: Outgoing, stopped: Callable[[], bool] = lambda: False) -> None:
        self._outgoing, self._stopped = outgoing, stopped

    def post(self, url: str, *, data: Any = None, headers: Mapping[str, Any] | None = None, timeout: Any = None) -> PushAnswer:
        """One POST. `timeout` in seconds for all of it, at most `LONGEST`. Raises OutgoingError."""
        seconds = float(timeout) if isinstance(timeout, int | float) and 0 < timeout < LONGEST else LONGEST
        body = data.encode() if isinstance(data, str) else bytes(data or b"")
        given = {name: str(value) for name, value in (headers or {}).items()}
        answer = self._outgoing.send("POST", url, given, body, seconds=seconds, limit=ANSWER_BYTES, stopped=self._stopped)
        return PushAnswer(answer.status, answer.headers, answer.body.decode(errors="replace"))
