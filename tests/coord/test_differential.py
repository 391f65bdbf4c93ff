"""The stand-in for Redis answers as the real Lua on a real Redis does, and leaves the same behind, whatever is asked in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.coord.coord import Answer, Caps, Forgotten, Holder, Key, RedisCoord, Seed, StateChange
from app.coord.scripts import Scripts
from tests.coord.mirror import Mirror
from tests.support.redis_server import PrivateRedis, private_redis

LOGS = ("s:t:a", "s:t:b", "s:t:c", "w:t")
WORKERS = ("one", "two")
VENDOR = {"s:t:a": "v1", "s:t:b": "v1", "s:t:c": "v2", "w:t": ""}
STATUSES = ("idle", "queued", "queued", "running", "interrupted", "closed")
LEASE_MS = 1000

log = st.sampled_from(LOGS)
worker = st.sampled_from(WORKERS)
epoch = st.integers(0, 3)
status = st.sampled_from(STATUSES)
wait = st.sampled_from((0, 0, 500, 2000))
caps = st.builds(
    lambda total, default, own: Caps(total, default, {"v1": own} if own else {}),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 2),
)
batch = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)
key = st.none() | st.tuples(st.sampled_from(("k1", "k2")), st.sampled_from(("b1", "b2", "")))
change = st.none() | st.tuples(st.sampled_from(("now", "now", "now", "old", "never")), status, wait)

command = st.one_of(
    st.tuples(st.just("append"), log, st.none() | st.just("holder") | st.tuples(worker, epoch), batch, key, change),
    st.tuples(st.just("append"), log, st.none(), batch, st.none(), st.tuples(st.just("now"), st.just("queued"), st.just(0))),
    st.tuples(st.just("append"), log, st.just("holder"), batch, st.none(), change),
    st.tuples(st.just("delta"), log, st.just("holder") | st.tuples(worker, epoch)),
    st.tuples(st.just("tail"), log, st.integers(-1, 12), st.integers(0, 9)),
    st.tuples(st.just("archived"), log, st.integers(-1, 1), st.integers(0, 12) | st.just(-1)),
    st.tuples(st.just("seed"), log, st.integers(0, 3), st.booleans(), st.integers(0, 200), status, wait, st.integers(0, 9)),
    st.tuples(st.just("seed"), log, st.integers(0, 3), st.just(True), st.just(0), st.just("queued"), st.just(0), st.just(0)),
    st.tuples(st.just("claim"), worker, st.sampled_from((0, 300)), caps),
    st.tuples(st.just("claim"), worker, st.just(0), st.just(Caps(9, 9, {}))),
    st.tuples(st.just("activate"), log, worker, epoch),
    st.tuples(st.just("activate"), log, st.just("holder"), epoch),
    st.tuples(st.just("begin"), log, st.just("holder") | st.tuples(worker, epoch), caps),
    st.tuples(st.just("enter"), st.sampled_from(("g1", "g2")), log),
    st.tuples(st.just("renew"), worker, st.lists(st.tuples(log, epoch), max_size=3)),
    st.tuples(st.just("release"), log, st.just("holder") | st.tuples(worker, epoch), st.booleans()),
    st.tuples(st.just("takeover"), worker),
    st.tuples(st.just("revoke"), log),
    st.tuples(st.just("shelve"), log, worker),
    st.tuples(st.just("heads"), st.lists(log, max_size=4)),
    st.tuples(st.just("forget"), st.sampled_from((0, 700))),
    st.tuples(st.just("tick"), st.sampled_from((1, 100, 600, 5000))),
    st.tuples(st.just("age_ids"), log),
    st.sampled_from((("flush",), ("restart",), ("snapshot",), ("rollback",))),
)


class Driver:
    """Plays commands on both sides and compares."""

    def __init__(self, mirror: Mirror) -> None:
        self._m = mirror
        self._snapshot: Any = None

    def play(self, step: tuple[Any, ...]) -> None:
        name, *args = step
        getattr(self, name)(*args)
        self._m.incarnations()
        real, fake = self._m.heard()
        assert sorted(real) == sorted(fake), step
        assert [m for m in real if m[0] != "wake"] == [m for m in fake if m[0] != "wake"]
        assert self._m.visible() == self._m.expected(), step
        assert not self._m.leftovers(), step

    def _same(self, call: Any) -> None:
        real, fake = self._m.both(call)
        assert real == fake

    def _holder(self, log: str, who: Any) -> Holder | None:
        if who == "holder":
            look = self._m.fake.look(log)
            return Holder(look.worker, int(look.epoch)) if look and look.worker and look.epoch else None
        return Holder(*who) if who else None

    def append(self, log: str, who: Any, ids: list[int], key: Any, change: Any) -> None:
        look = self._m.fake.look(log)
        made = None
        if change:
            expect = {"now": look.version if look else "0.0", "old": "0.99", "never": "never"}[change[0]]
            not_before = self._m.now + change[2] if change[2] else 0
            made = StateChange(expect, b'{"at":"@0","then":["@1",2]}', change[1], not_before)
        events = [(f"e{i}", b'{"n":%d}' % i) for i in ids]
        self._same(lambda c: c.append(log, events, holder=self._holder(log, who), key=Key(*key) if key else None, change=made))

    def delta(self, log: str, who: Any) -> None:
        holder = self._holder(log, who) or Holder("nobody", 1)
        self._same(lambda c: c.delta(log, holder, b'{"type":"d"}\n{"type":"d"}'))

    def tail(self, log: str, start: int, count: int) -> None:
        self._same(lambda c: c.tail(log, start, count))
        self._same(lambda c: c.look(log))

    def archived(self, log: str, gen: int, upto: int) -> None:
        look = self._m.fake.look(log)
        at = (look.gen if gen < 0 else gen) if look else 0
        to = look.next if upto < 0 and look else max(upto, 0)
        self._same(lambda c: c.archived(log, at, to, b'{"to":%d}' % to, f"sha:{to}"))

    def seed(self, log: str, gen: int, right: bool, next: int, status: str, wait: int, kept: int) -> None:
        incs = dict(zip((self._m.real, self._m.fake), self._m.incarnations(), strict=True))

        def run(c: Any) -> Answer:
            return c.seed(
                log,
                Seed(
                    gen=gen,
                    inc=incs[c] if right else "other",
                    next=next,
                    state=b'{"seeded":1}',
                    status=status,
                    not_before=self._m.now + wait if wait else 0,
                    epoch=gen,
                    vendor=VENDOR[log],
                    astate=b"{}",
                    asha="sha:1",
                    grace_ms=LEASE_MS,
                    keys={f"k{i}": f"0 {i} e{i} b1" for i in range(kept % 3)},
                    ids={f"e{i}": i for i in range(kept)},
                ),
            )

        self._same(run)

    def claim(self, worker: str, affinity: int, caps: Caps) -> None:
        self._same(lambda c: c.claim(worker, LEASE_MS, affinity, ("v1", "v2"), caps))

    def activate(self, log: str, worker: str, epoch: int) -> None:
        if worker == "holder":
            look = self._m.fake.look(log)
            worker = look.worker if look else "nobody"
        self._same(lambda c: c.activate(log, Holder(worker, epoch), LEASE_MS))

    def begin(self, log: str, who: Any, caps: Caps) -> None:
        holder = self._holder(log, who) or Holder("nobody", 1)
        self._same(lambda c: c.begin(log, holder, caps))

    def enter(self, group: str, log: str) -> None:
        self._same(lambda c: c.enter(group, log))

    def renew(self, worker: str, held: list[tuple[str, int]]) -> None:
        self._same(lambda c: c.renew(worker, LEASE_MS, held))

    def release(self, log: str, who: Any, force: bool) -> None:
        holder = self._holder(log, who) or Holder("nobody", 1)
        self._same(lambda c: c.release(log, holder, force))

    def takeover(self, worker: str) -> None:
        self._same(lambda c: c.takeover(worker, LEASE_MS))

    def revoke(self, log: str) -> None:
        self._same(lambda c: c.revoke(log, LEASE_MS))

    def shelve(self, log: str, worker: str) -> None:
        self._same(lambda c: c.shelve(log, worker, 3 * LEASE_MS))

    def heads(self, logs: list[str]) -> None:
        self._same(lambda c: c.heads(logs))

    def forget(self, idle_ms: int) -> None:
        self._same(lambda c: c.forget(idle_ms))

    def tick(self, ms: int) -> None:
        self._m.tick(ms)
        self._same(lambda c: c.clock())

    def age_ids(self, log: str) -> None:
        self._m.age_ids(log)

    def flush(self) -> None:
        self._m.flush()

    def restart(self) -> None:
        self._m.restart()

    def snapshot(self) -> None:
        self._snapshot = self._m.snapshot()

    def rollback(self) -> None:
        if self._snapshot:
            self._m.rollback(self._snapshot)


def play(server: PrivateRedis, steps: list[tuple[Any, ...]]) -> None:
    with server.client() as client:
        mirror = Mirror(client)
        try:
            driver = Driver(mirror)
            # begins where commands have something to work on
            for name in LOGS:
                driver.play(("seed", name, 0, True, 0, "queued" if name != "w:t" else "idle", 0, 0))
            for step in steps:
                driver.play(step)
        finally:
            mirror.close()


@pytest.mark.parametrize("part", range(2))
def test_stand_in_and_lua_agree(server: PrivateRedis, part: int) -> None:
    agree(server, 50)


@pytest.mark.chaos
def test_stand_in_and_lua_agree_for_long(server: PrivateRedis) -> None:
    agree(server, 2000)


def agree(server: PrivateRedis, examples: int) -> None:
    # shrinking by a real server is slow, and a failing sequence of this length is read easily enough
    @settings(
        max_examples=examples, deadline=None, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(command, min_size=5, max_size=50))
    def run(steps: list[tuple[Any, ...]]) -> None:
        play(server, steps)

    run()


def test_what_the_sequences_reach(server: PrivateRedis) -> None:
    """Rare answers, on purpose, so that agreement on them doesn't hang on luck."""
    all_caps = Caps(9, 9, {})
    play(
        server,
        [
            ("append", "s:t:a", None, [1, 2], ("k1", "b1"), ("now", "queued", 0)),
            ("append", "s:t:a", None, [3], ("k1", "b2"), None),
            ("append", "s:t:a", None, [1], None, None),
            ("append", "s:t:a", None, [4], None, ("never", "idle", 0)),
            ("claim", "one", 0, all_caps),
            ("activate", "s:t:a", "one", 1),
            ("activate", "s:t:a", "two", 2),
            ("append", "s:t:a", "holder", [5], None, ("now", "running", 0)),
            ("append", "s:t:a", ("two", 1), [6], None, None),
            ("release", "s:t:a", "holder", False),
            ("append", "s:t:a", "holder", [7], None, ("now", "queued", 0)),
            ("release", "s:t:a", "holder", False),
            ("begin", "s:t:a", "holder", Caps(1, 1, {})),
            ("claim", "two", 0, all_caps),
            ("begin", "s:t:a", "holder", Caps(1, 1, {})),
            ("enter", "g", "s:t:a"),
            ("enter", "g", "s:t:b"),
            ("release", "s:t:a", "holder", True),
            ("enter", "g", "s:t:b"),
            ("claim", "two", 5000, all_caps),
            ("age_ids", "s:t:a"),
            ("append", "s:t:a", None, [8], None, None),
            ("append", "s:t:a", None, [1], None, None),
            ("tick", 5000),
            ("takeover", "two"),
            ("restart",),
            ("takeover", "two"),
            ("claim", "two", 0, all_caps),
            ("seed", "s:t:a", 1, True, 90, "running", 0, 5),
            ("renew", "one", [("s:t:a", 1), ("s:t:b", 1)]),
            ("revoke", "s:t:a"),
            ("append", "s:t:a", None, [9], None, ("now", "idle", 0)),
            ("archived", "s:t:a", -1, -1),
            ("tail", "s:t:a", 0, 9),
            ("forget", 0),
            ("append", "s:t:b", None, [1], None, ("now", "idle", 0)),
            ("forget", 0),
            ("heads", ["s:t:a", "s:t:b", "w:t"]),
            ("claim", "one", 0, all_caps),
            ("shelve", "s:t:c", "one"),
            ("shelve", "s:t:c", "one"),
        ],
    )


@pytest.fixture(params=["real", "stand-in"])
def either(request: pytest.FixtureRequest, server: PrivateRedis) -> Iterator[Any]:
    with server.client() as client:
        mirror = Mirror(client)
        yield mirror.real if request.param == "real" else mirror.fake
        mirror.close()


def queued(coord: Any, *logs: str) -> None:
    for each in logs:
        fresh = _seed(coord.incarnation())._replace(status="queued", vendor="v1")
        assert coord.seed(each, fresh) is Answer.OK


def says(coord: Any, log: str, event_id: str, status: str, holder: Holder | None = None) -> None:
    """An event that leads to `status`."""
    change = StateChange(coord.look(log).version, b'{"at":1}', status)
    assert coord.append(log, [(event_id, b"{}")], holder=holder, change=change).answer is Answer.OK


def test_a_message_for_a_turn_that_is_about_to_begin_leaves_it_its_slot(either: Any) -> None:
    """It freed the slot, and was queued beside its own lease: one session more than the caps allow could run."""
    caps = Caps(1, 1, {})
    queued(either, "s:t:a", "s:t:b")
    assert either.claim("one", LEASE_MS, 0, ["v1"], caps).log == "s:t:a"
    assert either.activate("s:t:a", Holder("one", 1), LEASE_MS) is Answer.OK
    says(either, "s:t:a", "e1", "queued")
    assert either.claim("two", LEASE_MS, 0, ["v1"], caps) is None
    says(either, "s:t:a", "e2", "running", Holder("one", 1))
    assert either.claim("two", LEASE_MS, 0, ["v1"], caps) is None
    says(either, "s:t:a", "e3", "queued", Holder("one", 1))
    assert either.claim("two", LEASE_MS, 0, ["v1"], caps).log == "s:t:b", "a turn that has ended frees its slot"


def test_what_is_idle_with_an_unarchived_tail_is_named_and_comes_up_again(either: Any) -> None:
    """It left the set of the idle for good, and Redis kept it for ever."""
    assert either.seed("s:t:a", _seed(either.incarnation())._replace(vendor="v1")) is Answer.OK
    says(either, "s:t:a", "e1", "idle")
    assert either.forget(0) == Forgotten("s:t:a", True)
    assert either.forget(0) is None, "not at once"
    assert either.archived("s:t:a", 0, 1, b"{}", "sha") is Answer.OK
    assert either.forget(-60_000) == Forgotten("s:t:a", False)
    assert either.look("s:t:a") is None


def test_what_is_shelved_takes_no_slot_and_comes_back_later(either: Any) -> None:
    caps = Caps(1, 1, {})
    queued(either, "s:t:a", "s:t:b")
    assert either.claim("one", LEASE_MS, 0, ["v1"], caps).log == "s:t:a"
    assert either.shelve("s:t:a", "one", -1) is Answer.OK
    assert either.claim("one", LEASE_MS, 0, ["v1"], caps).log == "s:t:b"
    assert either.takeover("two", LEASE_MS).log == "s:t:a"
    assert either.shelve("s:t:a", "one", 0) is Answer.FENCED


class TestARealServer:
    @pytest.fixture
    def own(self) -> Iterator[PrivateRedis]:
        with private_redis() as running:
            yield running

    def test_a_restart_makes_every_log_cold(self, own: PrivateRedis) -> None:
        """What the stand-in's `restart` says: the data is all there, and no script believes in it."""
        with own.client() as client:
            coord = RedisCoord(Scripts(client, "test"))
            before = coord.incarnation()
            assert coord.seed("s:t:a", _seed(before)) is Answer.OK
            assert coord.append("s:t:a", [("e1", b"{}")]).answer is Answer.OK
        own.stop()
        own.start()
        with own.client() as client:
            coord = RedisCoord(Scripts(client, "test"))
            assert client.hget("{test}:log:s:t:a", "next") == b"1"
            assert coord.incarnation() != before
            assert coord.look("s:t:a") is None
            assert coord.append("s:t:a", [("e2", b"{}")]).answer is Answer.COLD
            assert coord.seed("s:t:a", _seed(before, 1)) is Answer.WRONG_INC
            assert coord.seed("s:t:a", _seed(coord.incarnation(), 1)) is Answer.OK

    def test_a_flush_by_the_only_client_makes_a_new_incarnation(self, own: PrivateRedis) -> None:
        """Found by the sequences: a boot key of the process came back, and the lost tail's offsets were given out again."""
        with own.client() as client:
            coord = RedisCoord(Scripts(client, "test"))
            before = coord.incarnation()
            client.flushall()
            assert coord.incarnation() != before

    def test_the_prelude_reads_the_clock_of_the_server(self, own: PrivateRedis) -> None:
        """The one function that the sequences above replace."""
        with own.client() as client:
            coord = RedisCoord(Scripts(client, "test"))
            seconds, _ = client.time()
            coord.seed("s:t:a", _seed(coord.incarnation()))
            assert 0 <= int(client.hget("{test}:log:s:t:a", "idsat") or 0) - seconds * 1000 < 60_000


def _seed(inc: str, gen: int = 0) -> Seed:
    return Seed(gen, inc, 0, b"{}", "idle", 0, 0, "v1", b"{}", "", 1000, {}, {})
