"""Compaction changes where events are, and nothing of what a reader sees; a crash, a zombie, anyone beside it does no harm."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.chain import Generation
from app.core.cursor import START
from app.core.errors import ByreError, Corrupt, Unavailable
from app.log import fold, heads, keyindex
from app.log.archiver import Place
from app.log.compact import DAY, Compactor
from app.log.leftovers import leftovers
from app.log.log import Log
from app.log.rewind import rewind
from app.log.segment import Fence, Segment, decode, unmark
from app.store import keys
from app.store.contract import Got, Head, Store, StoreError
from tests.log.lab import Lab, all_keys


def compactor(lab: Lab, log: Log | None = None, **more: Any) -> Compactor:
    return Compactor(log or lab.log(), lab.clock.now, **{"large_bytes": 1500, "large_events": 12, **more})


def clean(lab: Lab) -> int:
    """What `byre gc` would remove, removed; of how many objects."""
    found = list(leftovers(lab.log().segments, lambda p, a: _after(lab.store, p, a), lab.name, lab.chain, lab.clock.now()))
    for each in found:
        assert isinstance(decode(each.key, each.body), Segment) or "/keys/" in each.key
        lab.store.delete(each.key)
    return len(found)


def _after(store: Store, prefix: str, after: str) -> list[str]:
    return [key for key in all_keys(store, prefix) if key > after]


class Hooked:
    """A store that calls `before(number)` before each of its calls."""

    def __init__(self, inner: Store, before: Callable[[int, str, str], None]) -> None:
        self._inner, self._before, self.calls = inner, before, 0

    def _count(self, what: str, key: str) -> None:
        self.calls += 1
        self._before(self.calls, what, key)

    def get(self, key: str) -> Got:
        self._count("get", key)
        return self._inner.get(key)

    def head(self, key: str) -> Head:
        self._count("head", key)
        return self._inner.head(key)

    def put(self, key: str, body: bytes, **more: Any) -> str:
        self._count("put", key)
        return self._inner.put(key, body, **more)

    def list(self, prefix: str, **more: Any) -> list[str]:
        self._count("list", prefix)
        return self._inner.list(prefix, **more)

    def list_dirs(self, prefix: str, **more: Any) -> list[str]:
        return self._inner.list_dirs(prefix, **more)

    def delete(self, key: str) -> None:
        self._count("delete", key)
        self._inner.delete(key)

    def get_file(self, key: str, path: Path) -> str:
        return self._inner.get_file(key, path)

    def put_file(self, key: str, path: Path) -> str:
        return self._inner.put_file(key, path)

    def close(self) -> None:
        return None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 40), st.integers(1, 4000), st.integers(1, 30))
def test_no_reader_sees_a_difference(seed: int, steps: int, size: int, count: int) -> None:
    lab = Lab(seed)
    lab.live(steps)
    before = lab.seen()
    compactor(lab, large_bytes=size, large_events=count).run(lab.name)
    assert lab.seen() == before, "after compaction"
    lab.clock.at += 2 * DAY
    clean(lab)
    assert lab.seen() == before, "after the small segments are gone"
    compactor(lab).run(lab.name)
    assert lab.seen() == before, "after another compaction"


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_a_life_with_compaction_is_one_without(seed: int) -> None:
    """Two twins live the same life; one is compacted and cleaned all the time by processes that come and go."""
    one, other = Lab(seed), Lab(seed)
    for _ in range(6):
        one.live(6)
        other.live(6)
        other_rng = other.clock.rng.getstate()
        compactor(other).run(other.name)
        clean(other)
        other.clock.rng.setstate(other_rng)
        one.clock.at = other.clock.at = other.clock.at + 0.7 * DAY
    assert any(gen.rises for gen in other.chain) or len(other.small()) < 20, "it was compacted"
    assert [_bare(gen) for gen in other.chain] == [_bare(gen) for gen in one.chain]
    mine, its = one.seen(), other.seen()
    # a mark names segments by checksums that depend on chance; all else is the same
    mine["state"], its["state"] = mine["state"][::2], its["state"][::2]
    assert its == mine


def _bare(gen: Any) -> tuple[int, int, str | None]:
    return gen.gen, gen.start, gen.restored


def test_a_lost_large_segment_is_seen() -> None:
    lab = Lab(1)
    lab.live(30)
    assert compactor(lab).run(lab.name).large
    lab.store.delete(all_keys(lab.store, keys.session_prefix("acme", lab.name.session or "") + "compact/")[0])
    with pytest.raises(Corrupt):
        lab.seen()


def test_a_large_segment_keeps_the_chain_of_checksums() -> None:
    lab = Lab(3)
    for _ in range(30):
        lab.output()
    small = [decode(key, lab.store.get(key).body) for key in lab.small()]
    assert compactor(lab, large_bytes=400).run(lab.name).large > 3
    lab.output()
    log, gen = lab.log(), lab.chain[0]
    prev, at, last = "", 0, None
    while at < gen.boundary:
        large = log.segments.find(lab.name, gen, at)
        assert isinstance(large, Segment)
        assert large.prev == prev
        mine = [s for s in small if isinstance(s, Segment) and at <= s.first < large.end]
        assert large.mark == mine[-1].mark
        assert large.lines == [line for s in mine for line in s.lines]
        prev, at, last = unmark(large.mark)[0], large.end, mine[-1]
    newest = log.segments.find(lab.name, gen, at)
    assert newest and last
    assert newest.prev == last.sha256 == prev


def test_recovery_reads_key_indexes_and_not_what_is_compacted() -> None:
    lab = Lab(4)
    for i in range(40):
        lab.say(key=f"k{i}")
    compactor(lab, large_bytes=2000, large_events=50).run(lab.name)
    lab.say(key="last")
    read: list[str] = []
    log = lab.log(Hooked(lab.store, lambda _, what, key: read.append(key) if what == "get" else None))
    found, latest = fold.inputs(log.segments, lab.name, lab.chain, 41)
    assert len(found) == 41
    assert len(latest) == 41
    assert sum("/keys/" in key for key in read) >= 3
    assert not any("/compact/" in key for key in read)
    assert sum("/log/" in key for key in read) == 1


def test_keys_hold_over_compaction_deletion_and_a_lost_redis() -> None:
    lab = Lab(5)
    first = lab.say("the first", key="a")
    for _ in range(20):
        lab.turn()
        lab.say()
    compactor(lab).run(lab.name)
    lab.clock.at += 2 * DAY
    assert clean(lab) > 20
    lab.coord.flush()
    again = lab.say("the first", key="a")
    assert again == first


def test_a_log_is_due_by_its_small_segments_and_asks_nothing_while_it_is_short() -> None:
    lab = Lab(6)
    asked: list[str] = []
    log = lab.log(Hooked(lab.store, lambda _, what, key: asked.append(what)))
    log.head(lab.name)
    asked.clear()
    job = compactor(lab, log, small_segments=8)
    lab.output(8)
    assert not job.due(lab.name, 8)
    assert not asked, "eight events can't be in more than eight segments"
    lab.output(50)
    assert not job.due(lab.name, 58)
    assert asked == ["list"]
    for _ in range(7):
        lab.output(1)
    assert job.due(lab.name, 65)
    assert job.run(lab.name).small == 9
    assert not job.due(lab.name, 65)


def test_a_damaged_chain_is_never_made_to_look_whole() -> None:
    lab = Lab(7)
    for _ in range(6):
        lab.output(3)
    key = lab.small()[3]
    body = bytearray(lab.store.get(key).body)
    body[-3] ^= 4
    lab.store.put(key, bytes(body))
    with pytest.raises(Corrupt) as caught:
        compactor(lab, large_bytes=10**6, large_events=10**6).run(lab.name)
    assert caught.value.key == key
    assert not all_keys(lab.store, keys.compacted_prefix(lab.name, 0))


# Crashes


def test_a_crash_at_any_step_is_harmless_and_the_next_run_goes_on() -> None:
    steps = large = 0
    while True:
        lab = Lab(11)
        lab.live(12)
        before = lab.seen()

        def die(number: int, _what: str, _key: str, at: int = steps) -> None:
            if number > at:
                raise StoreError("dead", lasting=True)

        crashed = False
        try:
            compactor(lab, lab.log(Hooked(lab.store, die))).run(lab.name)
        except (StoreError, ByreError):
            crashed = True
        assert lab.seen() == before, f"died after {steps} calls"
        done = compactor(lab).run(lab.name)
        assert lab.seen() == before
        large += done.large
        lab.clock.at += 2 * DAY
        clean(lab)
        assert lab.seen() == before
        if not crashed:
            break
        steps += 1
    assert steps > 30
    assert large > steps / 2, "what the dead had not done was done"


def test_a_lost_answer_at_any_step_changes_nothing() -> None:
    for lost in range(60):
        lab = Lab(12)
        lab.live(14)
        before = lab.seen()
        store = LostAnswer(lab.store, lost)
        compactor(lab, lab.log(store)).run(lab.name)
        assert lab.seen() == before
        if store.calls <= lost:
            return
    raise AssertionError("never got through")


class LostAnswer(Hooked):
    """The answer of one call doesn't come, though it was done."""

    def __init__(self, inner: Store, lost: int) -> None:
        super().__init__(inner, lambda *_: None)
        self._lost = lost

    def put(self, key: str, body: bytes, **more: Any) -> str:
        etag = super().put(key, body, **more)
        if self.calls == self._lost:
            raise StoreError("no answer")
        return etag

    def get(self, key: str) -> Got:
        got = super().get(key)
        if self.calls == self._lost:
            raise StoreError("no answer")
        return got


# Others at work meanwhile


@pytest.mark.parametrize("what", ["append", "recover", "restore", "compact"])
def test_whatever_happens_beside_it_nothing_is_lost(what: str) -> None:
    at = 1
    while True:
        lab = Lab(21)
        lab.say(key="a")
        first = lab.turn(6)
        for _ in range(4):
            lab.say()
            lab.turn(3)
        said: list[Any] = []

        def beside(
            number: int, _what: str, _key: str, lab: Lab = lab, at: int = at, said: list[Any] = said, first: str = first
        ) -> None:
            if number != at:
                return
            if what == "restore":
                lab.restore(first)
            elif what == "recover":
                lab.coord.flush()
            elif what == "compact":
                compactor(lab, large_bytes=600).run(lab.name)
            said.append(lab.say(key="beside"))

        store = Hooked(lab.store, beside)
        compactor(lab, lab.log(store)).run(lab.name)
        if not said:
            break
        for _ in range(2):
            lab.turn(3)
            said.append(lab.say())
        before = lab.seen()
        compactor(lab).run(lab.name)
        lab.clock.at += 2 * DAY
        clean(lab)
        assert lab.seen() == before, f"{what} before call {at}"
        for place in said:
            assert lab.log().archiver.has(lab.name, place)
        at += 5
    assert at > 20, "the hook came at many places"


# Zombies: keys that are free again


def zombie(lab: Lab, meanwhile: Callable[[], None]) -> Hooked:
    """A store whose first PUT of a segment or fence waits until `meanwhile` has happened."""
    waiting = [meanwhile]

    def before(_number: int, what: str, key: str) -> None:
        if what == "put" and "/log/" in key and waiting:
            waiting.pop()()

    return Hooked(lab.store, before)


def test_an_archive_of_a_key_that_was_freed_is_no_acknowledgement() -> None:
    """A zombie has read [E, F]; E alone was archived by another, F was lost with Redis; E was compacted and its key freed."""
    lab = Lab(31)
    for _ in range(3):
        lab.output(5)
    lab.output(1, archive=False)
    tail = lab.coord.tail(lab.name.text, -1, 10)
    assert tail
    assert tail.arch == 15
    lab.main.archiver.once(lab.name, tail, None)
    lagging = lab.coord.memory.logs[lab.name.text]
    lagging.arch, lagging.astate, lagging.asha = tail.arch, tail.astate, tail.asha
    draft = lab.writer.draft("assistant.message", {"text": "the zombie's"})
    done = lab.main.append(lab.name, [(draft.id, draft.line())])
    assert done.offset == 16

    def meanwhile() -> None:
        lab.coord.restart()
        for _ in range(5):
            lab.say()
        compactor(lab).run(lab.name)
        lab.clock.at += 2 * DAY
        assert clean(lab) > 3

    slow = lab.log(zombie(lab, meanwhile))
    place = Place(done.gen, done.offset, draft.id)
    acknowledged = slow.archive(lab.name, place)
    landed = decode("", lab.store.get(keys.segment(lab.name, 0, 15)).body)
    assert isinstance(landed, Segment)
    assert len(landed.lines) == 2, "the key was free again: the PUT landed"
    assert not acknowledged
    assert not lab.log().archiver.has(lab.name, place)
    assert not any(b"the zombie's" in raw for _, raw in _all(lab))


def _all(lab: Lab) -> list[tuple[Any, bytes]]:
    log = lab.log()
    return [(e.position, e.raw) for e in log.read(lab.name, START, 10**6).entries]


def test_an_archive_below_the_boundary_of_the_same_generation_is_none() -> None:
    """The archived head in Redis lags (its hint was lost), what follows it was compacted and freed: nothing may go there."""
    lab = Lab(32)
    for _ in range(4):
        lab.output(3)
    lagging = lab.coord.memory.logs[lab.name.text]
    kept = (lagging.arch, lagging.astate, lagging.asha)
    for _ in range(4):
        lab.output(3)
    lagging.tail = {**lagging.tail}
    compactor(lab, large_bytes=10**6, large_events=10**6).run(lab.name)
    lab.clock.at += 2 * DAY
    assert clean(lab) == 8
    lagging.arch, lagging.astate, lagging.asha = kept
    before = lab.seen()
    place = lab.say("after the lag")
    assert lab.log().archiver.has(lab.name, place)
    assert lab.small() == [keys.segment(lab.name, 0, 24)], "it went to the head of the archive"
    after = lab.seen()
    assert after["state"][2] == before["state"][2] + 1


def test_a_fence_at_a_freed_key_ends_no_generation() -> None:
    """A recoverer stalls before its fence; the generation lives on, is compacted and freed; then the fence lands far below."""
    lab = Lab(33)
    for _ in range(4):
        lab.output(3)

    def meanwhile() -> None:
        for _ in range(4):
            lab.output(3)
        compactor(lab, large_bytes=10**6, large_events=10**6).run(lab.name)
        lab.clock.at += 2 * DAY
        assert clean(lab) == 8

    slow = lab.log(zombie(lab, meanwhile))
    slow.recovery.recover(lab.name, fenced=0)
    assert isinstance(decode("", lab.store.get(keys.segment(lab.name, 0, 12)).body), Fence), "it landed"
    assert lab.chain[1].start == 24, "but the generation ended where its archive does"
    assert len(_all(lab)) == 24


def test_a_restore_that_stalls_before_its_fence_decides_again() -> None:
    lab = Lab(34)
    lab.say()
    checkpoint = lab.turn(3)
    at = lab.main.view(lab.name).next

    def meanwhile() -> None:
        for _ in range(3):
            lab.say()
            lab.turn(3)
        compactor(lab, large_bytes=10**6, large_events=10**6).run(lab.name)
        lab.clock.at += 2 * DAY
        assert clean(lab) > 8

    slow = lab.log(zombie(lab, meanwhile))
    assert rewind(slow, lab.name, 0, at, at, checkpoint, {}) is False
    assert isinstance(decode("", lab.store.get(keys.segment(lab.name, 0, at)).body), Fence)
    assert len(lab.chain) == 1


def test_a_put_that_lands_late_in_a_freed_key_is_ignored() -> None:
    lab = Lab(35)
    for _ in range(6):
        lab.output(3)
    body = lab.store.get(lab.small()[2]).body
    compactor(lab, large_bytes=10**6, large_events=10**6).run(lab.name)
    lab.clock.at += 2 * DAY
    clean(lab)
    before = lab.seen()
    forged = bytearray(body)
    lab.store.put(keys.segment(lab.name, 0, 7), bytes(forged))
    lab.store.put(keys.segment(lab.name, 0, 3), b"rubbish")
    assert lab.seen() == before
    compactor(lab).run(lab.name)
    assert lab.seen() == before


def test_a_compactor_that_slept_for_days_adds_nothing_wrong() -> None:
    lab = Lab(36)
    for _ in range(12):
        lab.output(3)
    before = lab.seen()
    woken: list[int] = []

    def before_put(_number: int, what: str, key: str) -> None:
        if what == "put" and "/compact/" in key and not woken:
            woken.append(1)
            compactor(lab, large_events=7).run(lab.name)
            lab.clock.at += 2 * DAY
            clean(lab)
            lab.store.put(keys.segment(lab.name, 0, 3), b"rubbish")

    compactor(lab, lab.log(Hooked(lab.store, before_put))).run(lab.name)
    assert woken
    assert lab.seen() == before


# Generations


def test_what_a_restore_cut_off_goes_a_day_after_somebody_went_on() -> None:
    lab = Lab(41)
    lab.say()
    checkpoint = lab.turn(5)
    for _ in range(3):
        lab.say()
        lab.turn(5)
    many = len(lab.small())
    lab.restore(checkpoint)
    before = lab.seen()
    assert clean(lab) == 0, "not at once"
    lab.clock.at += 2 * DAY
    gone = clean(lab)
    assert gone > 10
    assert len(lab.small()) > many - gone
    assert lab.seen() == before
    fences = [key for key in lab.small() if isinstance(decode(key, lab.store.get(key).body), Fence)]
    assert len(fences) == 1, "the fence of the first generation stays"
    lab.say()
    lab.coord.flush()
    lab.say()
    assert lab.main.view(lab.name).state.checkpoint


def test_rises_are_kept_so_that_something_is_always_old_enough() -> None:
    gen, now = Generation(0, 0, "a"), 1_000_000
    for i in range(1, 200):
        now += 3600
        gen = gen.risen(i, now, now - DAY)
        assert len(gen.rises) <= 8
        assert Generation.from_json(gen.to_json()) == gen
    assert 0 < gen.settled_boundary(now - DAY) <= 199 - 24
    assert gen.settled_boundary(now - DAY) >= 199 - 60
    assert Generation(3, 50, "a", 50).settled_boundary(now) == 50


def test_a_key_index_is_checked() -> None:
    segment = Segment(1, 4, [b'{"type":"user.message","id":"e1","time":"t","data":{"text":"x","key":"k"}}'], "", {}, "p")
    body = keyindex.encode(segment)
    end, inputs = keyindex.decode("k", body, 1, 4)
    assert end == 5
    assert [i.id for i in inputs] == ["e1"]
    rng = random.Random(1)
    for _ in range(60):
        bad = bytearray(body)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        with pytest.raises(Corrupt):
            found = keyindex.decode("k", bytes(bad), 1, 4)
            assert found == (end, inputs), "a bit that means nothing"
            raise Corrupt("", "")
    with pytest.raises(Corrupt):
        keyindex.decode("k", body, 1, 5)
    with pytest.raises(Corrupt):
        keyindex.decode("k", b"", 1, 4)


def test_the_boundary_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(42)
    for _ in range(6):
        lab.output(3)
    log = lab.log()
    monkeypatch.setattr(heads, "change", lambda *_, **__: None)
    with pytest.raises(Unavailable):
        compactor(lab, log).run(lab.name)
