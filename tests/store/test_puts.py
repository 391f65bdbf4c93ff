"""Conditional writes through every fault that a store can make: one effect, one verdict, no hole."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import Corrupt, Unavailable
from app.store.contract import Absent, PreconditionFailed, Store
from app.store.faults import Fault, Faulty
from app.store.memory import MemoryStore
from app.store.puts import LONGEST_WAIT, TRACE_LENGTH, Pace, create_json, put_once, read_json, swap_json, update_json


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def pace(time: Time | None = None) -> Pace:
    clock = time or Time()
    numbers = itertools.count()
    return Pace(now=lambda: clock.now, sleep=clock.sleep, random=random.Random(1).random, token=lambda: f"p{next(numbers)}")


NOT_DONE = [Fault.LOST_REQUEST, Fault.RACED, Fault.ERROR_BODY, Fault.SLOW_DOWN]


@pytest.mark.parametrize("fault", [*NOT_DONE, Fault.LOST_ANSWER, Fault.LATE])
def test_a_create_has_one_effect_and_is_told_so(store: Store, fault: Fault) -> None:
    faulty = Faulty(store, script=[fault, None, fault])
    etag = put_once(faulty, "a", b"1", if_none_match=True, pace=pace())
    assert store.get("a") == (b"1", etag)
    faulty.land()
    assert store.get("a") == (b"1", etag)
    assert faulty.counts[fault] >= 1
    with pytest.raises(PreconditionFailed):
        put_once(faulty, "a", b"2", if_none_match=True, pace=Pace(sleep=lambda _: None))
    faulty.land()
    assert store.get("a").body == b"1"


@pytest.mark.parametrize("fault", [*NOT_DONE, Fault.LOST_ANSWER, Fault.LATE])
def test_a_replacement_has_one_effect_and_is_told_so(store: Store, fault: Fault) -> None:
    first = store.put("a", b"1")
    faulty = Faulty(store, script=[fault, fault])
    etag = put_once(faulty, "a", b"2", if_match=first, pace=pace())
    assert store.get("a") == (b"2", etag)
    assert put_once(faulty, "a", b"3", if_match=etag, pace=Pace(sleep=lambda _: None)) == store.get("a").etag
    faulty.land()
    assert store.get("a").body == b"3"


def test_a_late_write_that_lands_between_two_attempts_is_ours() -> None:
    store = MemoryStore()
    faulty = Faulty(store, script=[Fault.LATE, Fault.LOST_REQUEST], late_after=2)
    etag = put_once(faulty, "a", b"1", if_none_match=True, pace=pace())
    assert store.get("a") == (b"1", etag)


def test_nothing_is_concluded_from_an_absent_object() -> None:
    """The first attempt lands only after somebody was told that there is no object."""
    store = MemoryStore()
    faulty = Faulty(store, script=[Fault.LATE], late_after=10**9)
    with pytest.raises(Unavailable):
        put_once(faulty, "a", b"1", if_none_match=True, pace=pace(), deadline_seconds=0)
    with pytest.raises(Absent):
        store.get("a")
    assert faulty.land() == 1
    assert store.get("a").body == b"1"


def test_a_412_on_an_object_that_is_gone_again_is_tried_again() -> None:
    class Flickering(MemoryStore):
        refusals = 1

        def put(self, key: str, body: bytes, **options: Any) -> str:
            if self.refusals:
                self.refusals -= 1
                raise PreconditionFailed(key)
            return super().put(key, body, **options)

    store = Flickering()
    assert put_once(store, "a", b"1", if_none_match=True, pace=pace()) == store.get("a").etag


def test_what_was_to_be_replaced_and_is_gone_is_a_verdict_at_once() -> None:
    time = Time()
    with pytest.raises(PreconditionFailed):
        put_once(MemoryStore(), "a", b"1", if_match="x", pace=pace(time))
    assert time.slept == []


@pytest.mark.parametrize("fault", [*NOT_DONE, Fault.LOST_ANSWER])
def test_all_is_bounded_and_spread(fault: Fault) -> None:
    class Blind(MemoryStore):
        def head(self, key: str) -> Any:
            raise Absent(key)

    time = Time()
    faulty = Faulty(Blind(), rates={fault: 1.0})
    with pytest.raises(Unavailable):
        put_once(faulty, "a", b"1", if_none_match=True, pace=pace(time), deadline_seconds=10)
    assert 9 <= time.now <= 10
    assert 10 < faulty.counts[fault] < 40
    assert max(time.slept) <= LONGEST_WAIT * 1.5
    assert len(set(time.slept)) == len(time.slept)


def test_the_read_after_a_412_is_bounded_too() -> None:
    store = MemoryStore()
    store.put("a", b"0")
    time = Time()
    faulty = Faulty(store, script=[None, *[Fault.SLOW_DOWN] * 100])
    with pytest.raises(Unavailable):
        put_once(faulty, "a", b"1", if_none_match=True, pace=pace(time), deadline_seconds=5)
    assert time.now <= 5


def test_no_access_is_not_repeated() -> None:
    time = Time()
    faulty = Faulty(MemoryStore(), rates={Fault.REFUSED: 1.0})
    with pytest.raises(Unavailable):
        put_once(faulty, "a", b"1", if_none_match=True, pace=pace(time))
    assert time.slept == []


@pytest.mark.parametrize("conditions", [{}, {"if_none_match": True, "if_match": "x"}])
def test_exactly_one_condition(conditions: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one condition"):
        put_once(MemoryStore(), "a", b"1", **conditions)


def test_the_same_put_id_may_be_tried_again_later() -> None:
    store = MemoryStore()
    faulty = Faulty(store, script=[Fault.LOST_ANSWER])
    with pytest.raises(Unavailable):
        put_once(faulty, "a", b"1", if_none_match=True, put_id="mine", deadline_seconds=0, pace=pace())
    assert put_once(store, "a", b"1", if_none_match=True, put_id="mine", pace=pace()) == store.get("a").etag


# Documents


def counted(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "n": document["n"] + 1}


def test_documents_are_created_read_and_changed(store: Store) -> None:
    made, etag = create_json(store, "d", {"n": 1})
    assert read_json(store, "d") == (made, etag)
    assert made["n"] == 1
    changed, second = update_json(store, "d", counted)
    assert read_json(store, "d") == (changed, second)
    assert changed["n"] == 2
    assert update_json(store, "d", lambda _: None) == (changed, second)
    with pytest.raises(PreconditionFailed):
        swap_json(store, "d", {**made, "n": 9}, str(etag))
    with pytest.raises(PreconditionFailed):
        create_json(store, "d", {"n": 0})
    assert swap_json(store, "d", {**changed, "n": 3}, str(second))[0]["n"] == 3
    with pytest.raises(Absent):
        update_json(store, "none", counted)


def test_each_version_of_a_document_is_unique() -> None:
    """A -> B -> A must not bring an etag back under which a late write waits."""
    store = MemoryStore()
    _, first = create_json(store, "d", {"n": 1})
    update_json(store, "d", lambda d: {**d, "n": 2})
    _, third = update_json(store, "d", lambda d: {"n": 1})
    assert first != third


def test_the_trace_is_bounded_and_kept_by_changes_that_drop_it() -> None:
    store = MemoryStore()
    create_json(store, "d", {"n": 0})
    for _ in range(TRACE_LENGTH + 5):
        update_json(store, "d", lambda d: {"n": d["n"] + 1})
    trace = read_json(store, "d")[0]["put_ids"]
    assert len(trace) == len(set(trace)) == TRACE_LENGTH


@pytest.mark.parametrize("how", ["create", "swap", "update"])
def test_a_change_that_landed_unheard_and_was_replaced_is_known_as_ours(how: str) -> None:
    store = MemoryStore()

    class Overtaken(Faulty):
        def head(self, key: str) -> Any:
            update_json(store, key, counted)  # somebody else, between our put and our look at it
            return super().head(key)

    faulty = Overtaken(store, script=[Fault.LOST_ANSWER] if how != "update" else [None, Fault.LOST_ANSWER])
    if how == "create":
        document, etag = create_json(faulty, "d", {"n": 10}, pace=pace())
    else:
        start, first = create_json(store, "d", {"n": 9})
        if how == "swap":
            document, etag = swap_json(faulty, "d", counted(start), str(first), pace=pace())
        else:
            document, etag = update_json(faulty, "d", counted, pace=pace())
    assert (document["n"], etag) == (10, None)
    assert read_json(store, "d")[0]["n"] == 11


def test_losing_for_ever_is_bounded() -> None:
    store = MemoryStore()
    create_json(store, "d", {"n": 0})

    def change(document: dict[str, Any]) -> dict[str, Any]:
        update_json(store, "d", counted)
        return counted(document)

    time = Time()
    with pytest.raises(Unavailable):
        update_json(store, "d", change, pace=pace(time), deadline_seconds=3)
    assert 1.5 < time.now <= 3


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_document_is_named(body: bytes) -> None:
    store = MemoryStore()
    store.put("d", body)
    with pytest.raises(Corrupt) as caught:
        read_json(store, "d")
    assert caught.value.key == "d"
    with pytest.raises(Corrupt):
        update_json(store, "d", counted)


WEATHER = {
    Fault.LOST_ANSWER: 0.12,
    Fault.LOST_REQUEST: 0.12,
    Fault.LATE: 0.12,
    Fault.RACED: 0.1,
    Fault.ERROR_BODY: 0.08,
    Fault.SLOW_DOWN: 0.08,
}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_in_any_weather_a_counter_counts_what_was_acknowledged(seed: int, writers: int) -> None:
    """Several writers in turns, each attempt through faults; whatever nobody was told may have happened or not."""
    rng = random.Random(seed)
    store = MemoryStore()
    create_json(store, "d", {"n": 0})
    stores = [Faulty(store, rates=WEATHER, rng=rng, late_after=rng.randrange(1, 9)) for _ in range(writers)]
    tokens = itertools.count()
    acknowledged = unknown = 0
    for _ in range(25):
        faulty = rng.choice(stores)
        time = Time()
        calm = Pace(now=lambda t=time: t.now, sleep=time.sleep, random=rng.random, token=lambda: f"t{next(tokens)}")  # type: ignore[misc]
        try:
            update_json(faulty, "d", counted, pace=calm, deadline_seconds=rng.choice([0.1, 1, 10]))
            acknowledged += 1
        except Unavailable:
            unknown += 1
    for faulty in stores:
        faulty.land()
    assert acknowledged <= read_json(store, "d")[0]["n"] <= acknowledged + unknown


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_in_any_weather_a_key_is_created_by_one(seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore()
    stores = [Faulty(store, rates=WEATHER, rng=rng, late_after=rng.randrange(1, 9)) for _ in range(3)]
    for round_ in range(8):
        won: list[int] = []
        open_ = False
        for number, faulty in enumerate(rng.sample(stores, 3)):
            time = Time()
            calm = Pace(now=lambda t=time: t.now, sleep=time.sleep, random=rng.random)  # type: ignore[misc]
            try:
                put_once(
                    faulty, f"k{round_}", b"%d" % number, if_none_match=True, pace=calm, deadline_seconds=rng.choice([0.1, 5])
                )
                won.append(number)
            except PreconditionFailed:
                pass
            except Unavailable:
                open_ = True
        for faulty in stores:
            faulty.land()
        body = json.loads(store.get(f"k{round_}").body) if won or not open_ else None
        assert len(won) <= 1
        assert not won or body == won[0]
