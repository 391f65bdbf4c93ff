"""The life cycle of a session: every status with every event, folds of whole histories, placeholders for offsets."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import session
from app.core.errors import IllegalStep
from app.core.session import SETTLING, STATEFUL, TRANSITIONS, After, Checkpoint, Queued, State, Status, Turn, step

T = "2026-01-02T03:04:05.000000Z"
INPUT, OTHER = "a" * 32, "b" * 32
WAITING = (Queued(INPUT, 0, 3), Queued(OTHER, 0, 4))
RUNNING = Turn("turn-1", 7, (Queued("c" * 32, 0, 1),), 0, 2)

DATA: dict[str, dict[str, Any]] = {
    "user.message": {"text": "hello"},
    "user.interrupt": {"turn": "turn-1"},
    "input.withdrawn": {"input": INPUT},
    "turn.started": {"turn": "turn-2", "epoch": 8, "inputs": [INPUT]},
    "turn.steered": {"turn": "turn-1", "inputs": [INPUT]},
    "turn.completed": {"turn": "turn-1", "usage": {}, "checkpoint": "k" * 32},
    "turn.interrupted": {"turn": "turn-1", "reason": "worker_lost"},
    "turn.interrupted:user": {"turn": "turn-1", "reason": "user"},
    "turn.failed": {"turn": "turn-1", "code": "x", "message": "y"},
    "rate_limited": {"turn": "turn-1", "reset_ms": 5},
    "session.resumed": {},
    "session.restored": {"checkpoint": "k" * 32, "withdrawn": []},
    "session.closed": {},
}
EXPECTED = {
    # status: {event: status after, with two inputs waiting where the status allows inputs to wait}
    "idle": {"user.message": "queued", "session.restored": "idle", "session.closed": "closed"},
    "queued": {
        "user.message": "queued",
        "input.withdrawn": "queued",
        "turn.started": "running",
        "session.closed": "closed",
    },
    "running": {
        "user.message": "running",
        "user.interrupt": "running",
        "input.withdrawn": "running",
        "turn.steered": "running",
        "turn.completed": "queued",
        "turn.interrupted": "interrupted",
        "turn.interrupted:user": "queued",
        "turn.failed": "failed",
        "rate_limited": "queued",
    },
    "interrupted": {
        "input.withdrawn": "interrupted",
        "session.resumed": "queued",
        "session.restored": "idle",
        "session.closed": "closed",
    },
    "failed": {
        "input.withdrawn": "failed",
        "session.resumed": "queued",
        "session.restored": "idle",
        "session.closed": "closed",
    },
    "closed": {},
}


def given_state(status: str) -> State:
    return State(
        status=Status(status),
        queue=() if status in ("idle", "closed") else WAITING,
        turn=RUNNING if status == "running" else None,
        checkpoint=Checkpoint("old", 0, 1, T),
        updated_at="before",
    )


def play(state: State, row: str, data: dict[str, Any] | None = None, gen: int = 0, offset: int | str = 9) -> State:
    return step(state, row.partition(":")[0], "d" * 32, T, DATA[row] if data is None else data, gen, offset)


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("row", DATA)
def test_every_status_with_every_event(status: Status, row: str) -> None:
    before = given_state(status)
    expected = EXPECTED[status].get(row)
    if expected is None:
        with pytest.raises(IllegalStep):
            play(before, row)
        assert before == given_state(status), "an illegal step changes nothing"
    else:
        after = play(before, row)
        assert after.status == expected
        assert after.updated_at == T
        assert (after.turn is not None) == (after.status is Status.RUNNING)


def test_the_table_of_this_test_is_whole() -> None:
    assert {(Status(status), row) for status, rows in EXPECTED.items() for row in rows} == set(TRANSITIONS)
    assert {row.partition(":")[0] for row in DATA} == STATEFUL
    assert SETTLING <= STATEFUL


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("kind", ["assistant.message", "tool.call", "tool.result", "tool.progress", "an.unknown.type"])
def test_output_leaves_the_state_alone(status: Status, kind: str) -> None:
    before = given_state(status)
    assert play(before, kind, {"turn": "of another"}) is before


@pytest.mark.parametrize("row", [row for row, data in DATA.items() if "turn" in data and row != "turn.started"])
def test_a_late_event_of_an_old_turn_is_illegal(row: str) -> None:
    with pytest.raises(IllegalStep, match="turn-1 is open"):
        play(given_state("running"), row, {**DATA[row], "turn": "turn-0"})


def test_a_limit_is_over_with_the_last_that_it_parked() -> None:
    parked = State(status=Status.QUEUED, queue=WAITING, not_before=5000)
    left = play(parked, "input.withdrawn", {"input": WAITING[0].id})
    assert (len(left.queue), left.not_before) == (len(WAITING) - 1, 5000)
    for waiting in WAITING[1:]:
        left = play(left, "input.withdrawn", {"input": waiting.id})
    assert (left.status, left.not_before) == (Status.IDLE, 0)


def test_a_turn_that_was_settled_is_remembered_and_a_parked_one_isnt() -> None:
    assert play(given_state("running"), "rate_limited").ended is None
    for row in ("turn.completed", "turn.failed", "turn.interrupted", "turn.interrupted:user"):
        ended = play(given_state("running"), row).ended
        assert ended and (ended.id, ended.gen, ended.since) == (RUNNING.id, RUNNING.gen, RUNNING.since), row


def test_messages_wait_in_order_and_one_that_interrupts_goes_first() -> None:
    state = play(given_state("running"), "user.message")
    assert [q.id[0] for q in state.queue] == ["a", "b", "d"]
    state = play(given_state("running"), "user.message", {"text": "x", "delivery": "interrupt"})
    assert [q.id[0] for q in state.queue] == ["d", "a", "b"]
    assert state.turn
    assert state.turn.interrupting
    assert play(State(), "user.message", {"text": "x", "delivery": "interrupt"}).turn is None


def test_a_turn_consumes_exactly_what_it_names() -> None:
    state = play(given_state("queued"), "turn.started", {"turn": "t", "epoch": 9, "inputs": [OTHER]}, 1, 20)
    assert state.queue == WAITING[:1]
    assert state.turn == Turn("t", 9, WAITING[1:], 1, 20)
    with pytest.raises(IllegalStep, match="doesn't wait"):
        play(given_state("queued"), "turn.started", {"turn": "t", "epoch": 9, "inputs": ["e" * 32]})
    steered = play(given_state("running"), "turn.steered")
    assert steered.turn
    assert [q.id[0] for q in steered.turn.inputs] == ["c", "a"]
    assert steered.queue == WAITING[1:]
    with pytest.raises(IllegalStep, match="doesn't wait"):
        play(given_state("running"), "turn.steered", {"turn": "turn-1", "inputs": ["e" * 32]})


@pytest.mark.parametrize("row", ["turn.completed", "turn.interrupted", "turn.interrupted:user", "rate_limited"])
def test_a_settled_turn_names_its_checkpoint_or_leaves_the_last(row: str) -> None:
    named = play(given_state("running"), row, {**DATA[row], "checkpoint": "new"}, 2, 9)
    assert named.checkpoint == Checkpoint("new", 2, 10, T), "its offset is the next one after the event that names it"
    silent = play(given_state("running"), row, {k: v for k, v in DATA[row].items() if k != "checkpoint"})
    assert silent.checkpoint == Checkpoint("old", 0, 1, T)


def test_a_rate_limit_puts_the_inputs_back_and_parks_them() -> None:
    state = play(given_state("running"), "rate_limited")
    assert [q.id[0] for q in state.queue] == ["c", "a", "b"]
    assert state.not_before == 5
    started = play(state, "turn.started", {"turn": "t", "epoch": 9, "inputs": ["c" * 32]})
    assert started.not_before == 0


def test_returned_steering_inputs_wait_again_at_the_head() -> None:
    steered = play(given_state("running"), "turn.steered")
    state = play(steered, "turn.completed", {**DATA["turn.completed"], "returned": [INPUT]})
    assert [q.id[0] for q in state.queue] == ["a", "b"]
    assert state.status is Status.QUEUED


def test_the_last_input_withdrawn_leaves_it_idle() -> None:
    state = play(given_state("queued"), "input.withdrawn")
    assert play(state, "input.withdrawn", {"input": OTHER}).status is Status.IDLE


def test_closing_and_restoring_forget_what_waits() -> None:
    for row in ("session.closed", "session.restored"):
        assert play(given_state("interrupted"), row).queue == ()
    assert play(given_state("interrupted"), "session.closed").checkpoint == Checkpoint("old", 0, 1, T)


def test_usage_and_cost_are_summed_and_strange_values_left_out() -> None:
    state = given_state("running")
    first = play(
        state, "turn.completed", {"turn": "turn-1", "usage": {"input_tokens": 3, "odd": True, "text": "x"}, "cost_usd": 0.5}
    )
    again = play(first, "turn.started")
    second = play(again, "turn.failed", {"turn": "turn-2", "usage": {"input_tokens": 4}, "code": "", "message": ""})
    assert second.usage == {"input_tokens": 7, "cost_usd": 0.5}
    hostile: dict[str, Any] = {f"name_{n}": 1 for n in range(100)}
    hostile |= {
        "@1": 1,
        "": 1,
        "inf": float("inf"),
        "nan": float("nan"),
        "minus": -1,
        "huge": 10**30,
        "input_tokens": 2**53 - 1,
    }
    third = play(again, "turn.completed", {"turn": "turn-2", "usage": hostile})
    assert len(third.usage) == 32
    assert third.usage["input_tokens"] == 2**53
    assert not {"@1", "", "inf", "nan", "minus", "huge"} & set(third.usage)


def test_where_a_restored_generation_begins() -> None:
    checkpoint = Checkpoint("k", 0, 5, T)
    begun = session.restored(given_state("running"), checkpoint)
    assert (begun.status, begun.queue, begun.turn, begun.checkpoint) == (Status.IDLE, (), None, checkpoint)


# Histories: any sequence of steps that are legal

Step = tuple[str, str, dict[str, Any]]


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Steps `(kind, event id, data)` that are legal one after the other."""
    state, steps = State(), []
    for number in range(draw(st.integers(0, 30))):
        rows = [row for status, row in TRANSITIONS if status is state.status]
        if not rows:
            break
        row = draw(st.sampled_from(rows))
        kind, _, reason = row.partition(":")
        event_id = f"{number:032x}"
        data: dict[str, Any] = {}
        if kind == "user.message":
            data = {
                "text": draw(st.sampled_from(["x", '"@0"', "@1"])),
                "delivery": draw(st.sampled_from(["queue", "interrupt"])),
            }
        elif kind in ("input.withdrawn", "turn.started", "turn.steered"):
            if not state.queue:
                continue
            taken = draw(st.sampled_from(state.queue)).id
            data = {"input": taken} if kind == "input.withdrawn" else {"inputs": [taken], "epoch": number}
        elif kind in SETTLING:
            assert state.turn
            names = [q.id for q in state.turn.inputs]
            data = {
                "usage": {draw(st.sampled_from(["tokens", "@0", "@12"])): draw(st.integers(0, 9))},
                "reason": reason or "worker_lost",
                **draw(st.sampled_from([{}, {"checkpoint": f"check-{number}"}])),
                **draw(st.sampled_from([{}, {"returned": names[1:]}])),
            }
        if state.turn and kind != "turn.started" and kind.startswith(("turn.", "rate", "user.interrupt")):
            data["turn"] = state.turn.id
        elif kind == "turn.started":
            data["turn"] = f"turn-{number}"
        steps.append((kind, event_id, data))
        state = step(state, kind, event_id, T, data, 0, number)
    return steps


def fold(state: State, steps: list[Step], gen: int, first: int) -> State:
    for offset, (kind, event_id, data) in enumerate(steps, first):
        state = step(state, kind, event_id, T, data, gen, offset)
    return state


@given(histories(), st.data())
def test_folding_in_pieces_through_json_is_folding_at_once(steps: list[Step], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(steps)))
    whole = fold(State(), steps, 0, 0)
    half = State.from_json(json.loads(json.dumps(fold(State(), steps[:cut], 0, 0).to_json())))
    assert fold(half, steps[cut:], 0, cut) == whole
    assert State.from_json(whole.to_json()) == whole


@given(histories(), st.data())
def test_placeholders_become_the_offsets_that_the_events_get(steps: list[Step], data: st.DataObject) -> None:
    """As `append` does it: a batch is folded with "@i" for the offset of its event i, and the script puts the numbers in."""
    cut = data.draw(st.integers(0, len(steps)))
    first = data.draw(st.sampled_from([0, 7, 10**12]))
    before = fold(State(), steps[:cut], 0, first)
    state = before
    for i, (kind, event_id, fields) in enumerate(steps[cut:]):
        state = step(state, kind, event_id, T, fields, 0, f"@{i}")
    filled = re.sub(r'"@(\d+)"', lambda m: str(first + cut + int(m[1])), json.dumps(state.to_json()))
    assert State.from_json(json.loads(filled)) == fold(before, steps[cut:], 0, first + cut)


@given(histories())
def test_what_holds_in_every_state(steps: list[Step]) -> None:
    state = State()
    settled: set[str] = set()
    for offset, (kind, event_id, fields) in enumerate(steps):
        before = state
        state = step(state, kind, event_id, T, fields, 0, offset)
        assert (state.turn is not None) == (state.status is Status.RUNNING)
        assert len({q.id for q in state.queue}) == len(state.queue), "nothing waits twice"
        if state.turn:
            assert not {q.id for q in state.turn.inputs} & {q.id for q in state.queue}
        if state.status is Status.IDLE:
            assert not state.queue
        if kind in SETTLING:
            assert before.turn
            assert before.turn.id not in settled
            settled.add(before.turn.id)


def test_rest_is_the_only_target_that_depends() -> None:
    assert {target for target in TRANSITIONS.values() if not isinstance(target, Status)} == {After.REST}
