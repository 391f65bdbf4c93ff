"""What a client's input does to a session: accepted, nothing to do, or refused.

Rules: a decision looks at the folded state only, and the append that follows carries the state's version, so a decision is
never applied to another state than the one it was made on. The idempotency key is judged by the log, before this.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from app.core.session import State, Status

DELIVERIES = ("queue", "interrupt", "steer")


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """Append an event of type `kind` with `data`; answer `status` if the contract wants a Status rather than the event."""

    kind: str
    data: dict[str, Any]
    status: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to append; answer this status."""

    status: str


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """The state doesn't allow it: `why` is for the caller, `full` says that only a bound was reached (try again later)."""

    why: str
    full: bool = False


Decision = Accepted | Nothing | Refused


def message(state: State, data: dict[str, Any], max_queue: int, *, alone: bool = False) -> Accepted | Refused:
    """Decides on a `user.message` whose event data is `data`; at most `max_queue` inputs may wait, none before one that is `alone`."""
    if state.status is Status.CLOSED:
        return Refused("the session is closed")
    if state.status in (Status.INTERRUPTED, Status.FAILED):
        return Refused(f"the session is {state.status}: POST /sessions/{{id}}/resume first")
    if alone and state.status is not Status.IDLE:
        return Refused("a turn of this session runs or waits")
    if len(state.queue) >= max_queue:
        return Refused(f"{max_queue} inputs wait already", full=True)
    return Accepted("user.message", data)


def interrupt(state: State) -> Accepted | Nothing:
    """Decides on a `user.interrupt`: an open turn is interrupted once; queued messages stay."""
    if state.status is Status.CLOSED:
        return Nothing("closed")
    if state.turn is None:
        return Nothing("idle")
    if state.turn.interrupting:
        return Nothing("interrupting")
    return Accepted("user.interrupt", {"turn": state.turn.id}, status="interrupting")


def withdraw(state: State, event_id: str) -> Accepted | Refused:
    """Decides on withdrawing a queued message: only one that no turn has consumed can be."""
    if all(q.id != event_id for q in state.queue):
        return Refused("that input doesn't wait (any more)")
    return Accepted("input.withdrawn", {"input": event_id}, status="accepted")


def resume(state: State) -> Accepted | Refused:
    """Decides on a resume: only an interrupted or failed session has something to go back from."""
    if state.status not in (Status.INTERRUPTED, Status.FAILED):
        return Refused(f"the session is {state.status}: only an interrupted or failed one can be resumed")
    data = {"checkpoint": state.checkpoint.id} if state.checkpoint else {}
    return Accepted("session.resumed", data, status="accepted")


def restore(state: State) -> Literal["ok"] | Refused:
    """Decides whether a restore may begin: the session must be settled (no turn runs or waits) and open."""
    if state.status is Status.CLOSED:
        return Refused("the session is closed")
    if state.turn or state.queue:
        return Refused("the session isn't settled: wait for its turns, or interrupt and withdraw them")
    return "ok"
