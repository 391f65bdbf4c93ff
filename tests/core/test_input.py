"""Decisions on what clients send, for every status."""

from __future__ import annotations

import dataclasses

import pytest

from app.core import input as rules
from app.core.input import Accepted, Nothing, Refused
from app.core.session import Checkpoint, Queued, State, Status, Turn, step

TURN = Turn("turn-1", 7, (Queued("c" * 32, 0, 1),), 0, 2)
WAITING = (Queued("a" * 32, 0, 3), Queued("b" * 32, 0, 4))
T = "2026-01-02T03:04:05.000000Z"


def state(status: Status, **more: object) -> State:
    made = State(status, WAITING, TURN if status is Status.RUNNING else None)
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", list(Status))
def test_messages(status: Status) -> None:
    decision = rules.message(state(status), {"text": "x"}, 10)
    if status in (Status.IDLE, Status.QUEUED, Status.RUNNING):
        assert decision == Accepted("user.message", {"text": "x"})
    else:
        assert isinstance(decision, Refused)
        assert not decision.full
        assert ("resume" in decision.why) == (status is not Status.CLOSED), "it says what to do"


def test_a_full_queue_is_a_matter_of_time() -> None:
    assert rules.message(state(Status.RUNNING), {}, 3) == Accepted("user.message", {})
    full = rules.message(state(Status.RUNNING), {}, 2)
    assert isinstance(full, Refused)
    assert full.full


@pytest.mark.parametrize("status", list(Status))
def test_interrupts(status: Status) -> None:
    decision = rules.interrupt(state(status))
    if status is Status.RUNNING:
        assert decision == Accepted("user.interrupt", {"turn": "turn-1"}, "interrupting")
    else:
        assert decision == Nothing("closed" if status is Status.CLOSED else "idle")


def test_a_turn_is_interrupted_once() -> None:
    assert rules.interrupt(state(Status.RUNNING, turn=dataclasses.replace(TURN, interrupting=True))) == Nothing("interrupting")


@pytest.mark.parametrize("status", list(Status))
def test_only_what_waits_can_be_withdrawn(status: Status) -> None:
    if status in (Status.IDLE, Status.CLOSED):
        assert isinstance(rules.withdraw(state(status, queue=()), "a" * 32), Refused)
        return
    assert rules.withdraw(state(status), "a" * 32) == Accepted("input.withdrawn", {"input": "a" * 32}, "accepted")
    assert isinstance(rules.withdraw(state(status), "c" * 32), Refused), "a turn has it"


@pytest.mark.parametrize("status", list(Status))
def test_resume(status: Status) -> None:
    decision = rules.resume(state(status, checkpoint=Checkpoint("k", 0, 5, T)))
    if status in (Status.INTERRUPTED, Status.FAILED):
        assert decision == Accepted("session.resumed", {"checkpoint": "k"}, "accepted")
        assert rules.resume(state(status)) == Accepted("session.resumed", {}, "accepted")
    else:
        assert isinstance(decision, Refused)


@pytest.mark.parametrize("status", list(Status))
def test_restore_needs_a_settled_state(status: Status) -> None:
    assert isinstance(rules.restore(state(status)), Refused), "inputs wait"
    settled = rules.restore(state(status, queue=()))
    assert (settled == "ok") == (status in (Status.IDLE, Status.QUEUED, Status.INTERRUPTED, Status.FAILED))


@pytest.mark.parametrize("status", list(Status))
def test_whatever_is_accepted_is_a_legal_step(status: Status) -> None:
    """Idle always accepts a message, and nothing is wedged: no decision leads into an illegal step."""
    before = state(status, queue=() if status in (Status.IDLE, Status.CLOSED) else WAITING)
    decisions = [
        rules.message(before, {"text": "x"}, 10),
        rules.interrupt(before),
        rules.withdraw(before, "a" * 32),
        rules.resume(before),
    ]
    for decision in decisions:
        if isinstance(decision, Accepted):
            step(before, decision.kind, "d" * 32, T, decision.data, 0, 9)
