"""Calls of tools that run in a client: sent to the executor's current connection, answered through Redis.

Rules: a call is sent once or not at all. After it was dispatched nothing but its answer tells what became of it, so a connection
that goes, a deadline that passes and an interrupt give an unknown outcome.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import orjson

from app.coord.executors import Cancelled, ExecutorRouting
from app.core.errors import Unavailable
from app.core.tools import text_result
from app.log.hub import Hub
from workers.tools import Call

POLL_SECONDS = 2.0
"""How often Redis is asked whether the call's connection lives, and for an answer whose wake-up was lost."""
LOOK_SECONDS = 0.25
"""How soon a cancellation is noticed."""
SPARE_MS = 60_000


class ExecutorCalls:
    """All executor calls of one worker."""

    def __init__(self, routing: ExecutorRouting, hub: Hub, worker: str) -> None:
        self._routing, self._worker = routing, worker
        self._waiting: dict[str, threading.Event] = {}
        hub.hear(routing.answers_channel(worker), self._heard)

    def call(self, call: Call) -> dict[str, Any]:
        """The executor's Result, or one that says why there is none."""
        executor = call.binding.get("executor")
        if executor is None:
            return text_result("no executor is bound to this tool now", error=True)
        # the inspection token is made where the command leaves for the executor: Redis never has it
        scope = {name: value for name, value in call.scope.items() if name != "inspection_token"}
        command = {
            "type": "call",
            "call_id": call.id,
            "tool": call.tool,
            "arguments": call.arguments,
            "scope": scope,
            "seconds": int(call.deadline - time.monotonic()) + 5,
        }
        woken = self._waiting[call.id] = threading.Event()
        keep_ms = int((call.deadline - time.monotonic()) * 1000) + SPARE_MS
        try:
            connection = self._routing.call(executor, call.id, self._worker, orjson.dumps(command), keep_ms)
            if connection is None:
                return text_result("the executor has too many open calls", error=True)
            if not connection:
                return text_result("the executor isn't connected, so the call was not made", error=True)
            return self._wait(call, executor, woken)
        except Unavailable:
            return text_result("the call may have been sent; its outcome is unknown", unknown=True)
        finally:
            del self._waiting[call.id]

    def _wait(self, call: Call, executor: str, woken: threading.Event) -> dict[str, Any]:
        while True:
            self._sleep(call, woken)
            over = time.monotonic() >= call.deadline
            try:
                result = self._settled(call)
                if result is not None:
                    return result
                if over or call.cancelled.is_set():
                    return self._given_up(call, executor, "did not answer in time" if over else "was told to stop")
                if not self._routing.probe(executor, call.id):
                    return text_result("the call was lost on its way; its outcome is unknown", unknown=True)
            except Unavailable:
                if over or call.cancelled.is_set():
                    raise
                # Redis is away, the executor isn't: its answer may come yet

    def _given_up(self, call: Call, executor: str, why: str) -> dict[str, Any]:
        cancelled = self._routing.cancel(executor, call.id, orjson.dumps({"type": "cancel", "call_id": call.id}))
        if cancelled is Cancelled.NEVER_SENT:
            return text_result("the executor did not take the call in time, so it was not made", error=True)
        unknown = text_result(f"the executor {why}; the outcome is unknown", unknown=True)
        # an answer that came just before the cancellation counts
        return (self._settled(call) if cancelled is Cancelled.NOT_OPEN else None) or unknown

    def _sleep(self, call: Call, woken: threading.Event) -> None:
        """Until there is something to look at."""
        until = min(time.monotonic() + POLL_SECONDS, call.deadline)
        while not call.cancelled.is_set():
            left = until - time.monotonic()
            if left <= 0 or woken.wait(min(LOOK_SECONDS, left)):
                break
        woken.clear()

    def _settled(self, call: Call) -> dict[str, Any] | None:
        """Passes on the progress that has come; gives the call's end, if it has come."""
        for answer in self._routing.answers(call.id):
            kind, payload = answer[:1], answer[1:]
            if kind == b"P":
                call.progress(orjson.loads(payload))
            elif kind == b"R":
                result: dict[str, Any] = orjson.loads(payload)
                return result
            elif kind == b"N":
                return text_result("the executor went before it was sent the call", error=True)
            else:
                return text_result("the executor's connection was lost after it had the call", unknown=True)
        return None

    def _heard(self, message: bytes) -> None:
        if not message:
            for woken in list(self._waiting.values()):
                woken.set()
            return
        one = self._waiting.get(message.decode())
        if one:
            one.set()
