"""Request and reply between API processes and workers: for what needs a repository, which no API process touches.

A request's body lies under its own key with the time it is good for; queues hold ids only, so a request is taken once, and one
that nobody took in time is gone. A queue belongs to a *host* (all workers that share one BYRE_WORKSPACES) or to any worker.

Rules: the asker waits with a deadline and then answers 503; whoever takes a request answers it, with an error if need be. Nothing here is
durable: what must last is in the store before it is answered.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import orjson
import redis

from app.coord.reach import reached
from app.core import errors
from app.core.errors import ByreError, Unavailable

WAIT_SECONDS = 2
"""Longest blocking wait in Redis; shorter than any client's socket timeout."""
REPLY_MS = 60_000
HOST_MS = 10_000
BY_CODE: dict[str, type[ByreError]] = {
    name: getattr(errors, name)
    for name in ("Invalid", "Forbidden", "Missing", "Conflict", "TooLarge", "Unsupported", "Overloaded", "Unavailable")
}
Document = dict[str, Any]


class Requests:
    """One deployment's requests. Every method raises Unavailable if Redis can't be reached."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._redis = client
        self._prefix = "{" + prefix + "}:req"

    def ask(self, kind: str, body: Document, seconds: float, host: str = "") -> Any:
        """The answer of a worker (of `host`, or of any). Raises the error that it answered, Unavailable after `seconds`.

        A host that dies before it has taken the request is not waited for: any other may take it then.
        """
        until = time.monotonic() + seconds
        with reached():
            number = self._put(kind, body, seconds, host)
            while (left := until - time.monotonic()) > 0:
                answer = self._redis.blpop([f"{self._prefix}:{number}:reply"], timeout=min(WAIT_SECONDS, max(left, 0.01)))
                if answer:
                    return _opened(orjson.loads(answer[1]))
                if host and not self._redis.exists(f"{self._prefix}:host:{host}"):
                    # nobody of that host has taken it, or nobody lives who could answer
                    self._redis.lrem(self._queue(host), 0, number)
                    host = ""
                    self._redis.rpush(self._queue(""), number)
            self._redis.delete(f"{self._prefix}:{number}")
        raise Unavailable("no worker answered in time; try again")

    def tell(self, kind: str, body: Document, seconds: float, host: str = "") -> None:
        """Asks for something to be done within `seconds`, and doesn't wait for the answer."""
        with reached():
            self._put(kind, body, seconds, host)

    def _put(self, kind: str, body: Document, seconds: float, host: str) -> str:
        number = secrets.token_hex(16)
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(
                f"{self._prefix}:{number}", orjson.dumps({"id": number, "kind": kind, "body": body}), px=int(seconds * 1000)
            )
            pipe.rpush(self._queue(host), number)
            pipe.pexpire(self._queue(host), 600_000)
            pipe.execute()
        return number

    def take(self, host: str, seconds: float = WAIT_SECONDS) -> Document | None:
        """The next request for `host` or for any, None when there is none for `seconds`."""
        with reached():
            found = self._redis.blpop([self._queue(host), self._queue("")], timeout=seconds)
            body = self._redis.getdel(f"{self._prefix}:{_text(found[1])}") if found else None
        request: Document | None = orjson.loads(body) if body else None
        return request

    def answer(self, request: Document, result: Any) -> None:
        """Answers with a result."""
        self._reply(request, {"ok": result})

    def refuse(self, request: Document, error: ByreError) -> None:
        """Answers with an error, which the asker raises."""
        self._reply(request, {"error": type(error).__name__, "message": error.message, "field": getattr(error, "field", None)})

    def live(self, host: str) -> None:
        """A worker of `host` lives; said at least every third of `HOST_MS`."""
        with reached():
            self._redis.set(f"{self._prefix}:host:{host}", 1, px=HOST_MS)

    def holds(self, tenant: str, task: str, host: str) -> None:
        """The worktree of `task` is on `host` now."""
        with reached():
            self._redis.set(f"{self._prefix}:at:{tenant}:{task}", host)

    def holder(self, tenant: str, task: str) -> str:
        """The living host that has the worktree of `task`, "" if there is none."""
        with reached():
            host = self._redis.get(f"{self._prefix}:at:{tenant}:{task}")
            name = _text(host) if host else ""
            if name and self._redis.exists(f"{self._prefix}:host:{name}"):
                return name
        return ""

    def lives(self, host: str) -> bool:
        """Whether a worker of `host` has said lately that it lives."""
        with reached():
            return bool(self._redis.exists(f"{self._prefix}:host:{host}"))

    def gone(self, tenant: str, task: str) -> None:
        """The worktree of `task` is nowhere."""
        with reached():
            self._redis.delete(f"{self._prefix}:at:{tenant}:{task}")

    def _queue(self, host: str) -> str:
        return f"{self._prefix}:queue:{host or 'any'}"

    def _reply(self, request: Document, answer: Document) -> None:
        key = f"{self._prefix}:{request['id']}:reply"
        with reached(), self._redis.pipeline(transaction=True) as pipe:
            pipe.rpush(key, orjson.dumps(answer))
            pipe.pexpire(key, REPLY_MS)
            pipe.execute()


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


def _opened(answer: Document) -> Any:
    if "error" not in answer:
        return answer["ok"]
    kind = BY_CODE.get(answer["error"])
    if kind is errors.Invalid:
        raise errors.Invalid(answer["message"], answer["field"])
    raise kind(answer["message"]) if kind else ByreError("the worker failed on this request")
