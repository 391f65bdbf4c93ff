"""Following a log: from history into the live tail with no gap and no repeat, whatever gets lost on the way."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from app.coord.coord import Holder
from app.core.cursor import START, Position
from app.log import events, follower, hub, subscription
from app.log.follower import Follower
from app.store.contract import Store
from app.store.keys import LogName
from app.store.memory import MemoryStore
from tests.log.bench import Bench
from tests.support.dev import until
from tests.support.redis_server import PrivateRedis, private_redis

SOON = 15.0


@pytest.fixture
def one(bench: Callable[[Store], Bench]) -> Bench:
    return bench(MemoryStore())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats in a fraction of a second."""
    monkeypatch.setattr(subscription, "PING_SECONDS", 0.05)
    monkeypatch.setattr(hub, "HEARTBEAT_SECONDS", 0.1)


def taken(reader: Follower, count: int, seconds: float = SOON) -> list[str]:
    """The ids of the next `count` events."""
    found: list[str] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} events in {seconds:g} s"
        found += [events.id_of(e.raw) for e in reader.entries(0.2)]
    return found


def to_the_end(reader: Follower, seconds: float = SOON) -> list[str]:
    """The ids of all events until the follower ends."""
    found: list[str] = []
    deadline = time.monotonic() + seconds
    with contextlib.suppress(EOFError):
        while time.monotonic() < deadline:
            found += [events.id_of(e.raw) for e in reader.entries(0.2)]
        raise AssertionError(f"no end in {seconds:g} s")
    return found


@contextlib.contextmanager
def talking(one: Bench, name: LogName, said: list[str], every: float = 0.0) -> Iterator[None]:
    """Somebody appends (and archives now and then) for the time of the block."""
    stop = threading.Event()
    other = one.other()

    def talk() -> None:
        while not stop.wait(every):
            said.extend(other.say(name, 3))
            if len(said) % 5 == 0:
                other.log.archive(name)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(SOON)
        other.close()


def connected(one: Bench) -> None:
    """Waits until nothing is missed any more; deltas are kept nowhere."""
    until("it is connected", lambda: one.hub.connected() and one.hub._subscription._missing is None)


def lives(one: Bench, name: LogName, reader: Follower, seconds: float = 3.0) -> None:
    """Waits until what is said reaches `reader` by the channel."""
    (made,) = one.say(name)
    assert taken(reader, 1, seconds) == [made]


def test_from_history_into_the_live_tail(one: Bench) -> None:
    name = one.session()
    said = one.say(name, 1300)
    with talking(one, name, said):
        readers = [one.hub.follow(name, START) for _ in range(5)]
        got = [taken(reader, 1500) for reader in readers]
    for reader, first in zip(readers, got, strict=True):
        assert first + taken(reader, len(said) - len(first)) == said
        reader.close()


def test_from_any_place(one: Bench) -> None:
    name = one.session()
    said = one.say(name, 200)
    one.log.archive(name)
    said += one.say(name, 100)
    for offset in (-1, 0, 150, 198, 199, 200, 298, 299):
        reader = one.hub.follow(name, Position(0, offset))
        assert taken(reader, 299 - offset) == said[offset + 1 :]
        assert reader.entries(0) == []
        reader.close()


@pytest.mark.usefixtures("quick")
def test_lost_messages_are_found(one: Bench) -> None:
    """Every third is lost, and the last of all."""
    name = one.session()
    real, count = one.hub._subscription._message, iter(range(10**9))
    one.hub._subscription._message = lambda channel, body: None if next(count) % 3 == 0 else real(channel, body)
    reader = one.hub.follow(name, START)
    said = [made for _ in range(50) for made in one.say(name, 2)]
    assert taken(reader, 100) == said
    one.hub._subscription._message = lambda channel, body: None
    said = one.say(name, 2)
    assert taken(reader, 2) == said
    reader.close()


@pytest.mark.usefixtures("quick")
def test_the_last_message_is_missed_also_where_others_are_talking(one: Bench) -> None:
    quiet, busy = one.session(), one.session()
    real = one.hub._subscription._message
    channel = one.coord.channel(quiet.text)
    reader = one.hub.follow(quiet, START)
    other = one.hub.follow(busy, START)
    lives(one, quiet, reader)
    one.hub._subscription._message = lambda where, body: None if where == channel else real(where, body)
    said = one.say(quiet, 1)
    with talking(one, busy, [], every=0.005):
        assert taken(reader, 1) == said
    for each in (reader, other):
        each.close()


def test_a_cut_connection_loses_nothing(one: Bench) -> None:
    name = one.session()
    said: list[str] = []
    reader = one.hub.follow(name, START)
    got: list[str] = []
    with talking(one, name, said, every=0.002):
        for _ in range(4):
            got += taken(reader, 20)
            one.client.client_kill_filter(_type="pubsub")
    assert got + taken(reader, len(said) - len(got)) == said
    until("it is connected again", one.hub.connected)
    lives(one, name, reader)
    reader.close()


@pytest.fixture
def own_server() -> Iterator[PrivateRedis]:
    with private_redis() as server:
        yield server


def test_a_restart_of_redis_in_the_middle(own_server: PrivateRedis) -> None:
    """What was archived goes on; what was shown and then lost ends the stream."""
    one = Bench(own_server, MemoryStore())
    try:
        name = one.session()
        safe, lost = one.hub.follow(name, START), one.hub.follow(name, START)
        said = one.say(name, 3)
        one.log.archive(name)
        assert taken(safe, 3) == said
        own_server.stop()
        assert safe.entries(0.1) == []
        own_server.start()
        until("it is connected again", one.hub.connected)
        more = one.say(name, 2)
        assert taken(safe, 2) == more, "a generation that begins behind what was shown goes on"
        assert taken(lost, 5) == said + more
        own_server.stop()
        own_server.start()
        until("it is connected again", one.hub.connected)
        one.say(name, 2)
        assert to_the_end(lost) == []
        for reader in (safe, lost):
            reader.close()
    finally:
        one.close()


def test_a_follower_that_comes_while_redis_is_away_gets_history_and_then_the_rest(own_server: PrivateRedis) -> None:
    one = Bench(own_server, MemoryStore())
    try:
        name = one.session()
        said = one.say(name, 30)
        one.log.archive(name)
        assert one.hub
        own_server.stop()
        reader = one.hub.follow(name, START)
        assert taken(reader, 30) == said
        assert reader.entries(0.1) == []
        own_server.start()
        until("it is connected again", one.hub.connected)
        said = one.say(name, 2)
        assert taken(reader, 2) == said
        reader.close()
    finally:
        one.close()


@pytest.mark.usefixtures("quick")
def test_a_flush_ends_whoever_has_seen_what_was_lost_although_nothing_follows(one: Bench) -> None:
    name = one.session()
    said = one.say(name, 3)
    one.log.archive(name)
    kept = one.hub.follow(name, START)
    assert taken(kept, 3) == said
    ended = one.hub.follow(name, START)
    seen = one.say(name, 2)
    assert taken(ended, 5) == said + seen
    assert taken(kept, 2) == seen
    late = one.hub.follow(name, Position(0, 2))
    one.client.flushall()
    one.log.view(name)
    assert to_the_end(ended) == []
    assert to_the_end(kept) == []
    late.close()
    again = one.hub.follow(name, Position(0, 2))
    more = one.say(name, 1)
    assert taken(again, 1) == more
    again.close()


def test_a_restore_ends_whoever_has_seen_what_it_cuts_off(one: Bench) -> None:
    name = one.session()
    checkpoint = one.turn(name)
    behind = one.hub.follow(name, START)
    until("it has the first turn", lambda: behind.entries(0.2) and behind.position.offset == 3)
    one.turn(name)
    ahead = one.hub.follow(name, START)
    until("it has both turns", lambda: ahead.entries(0.2) and ahead.position.offset == 7)
    assert behind.position.offset == 3, "nobody has read it meanwhile"
    one.restoring.restore(name, checkpoint)
    assert to_the_end(ahead) == []
    assert [events.kind_of(e.raw) for e in until("it goes on", lambda: behind.entries(0.2))][-1] == "session.restored"
    for reader in (ahead, behind):
        reader.close()


def test_a_slow_reader_is_sent_to_history_and_loses_nothing(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "QUEUE_BYTES", 2000)
    name = one.session()
    slow, fast = one.hub.follow(name, START), one.hub.follow(name, START)
    lives(one, name, fast)
    assert len(taken(slow, 1)) == 1
    said: list[str] = []
    for _ in range(60):
        said += one.say(name, 5)
        assert slow._bytes <= 2000 + 1200, "a queue holds a chunk more than its bound at the most"
    one.log.archive(name)
    assert taken(fast, 300) == said
    assert taken(slow, 300) == said
    lives(one, name, slow)
    for reader in (slow, fast):
        reader.close()


def test_a_closed_session_ends_its_followers_after_its_last_event(one: Bench) -> None:
    name = one.session()
    said = one.say(name, 2)
    reader = one.hub.follow(name, START)
    assert taken(reader, 2) == said
    one.commit(name, "session.closed", {})
    assert len(to_the_end(reader)) == 1
    late = one.hub.follow(name, START)
    late.finite = True
    assert len(to_the_end(late)) == 3
    behind = one.hub.follow(name, Position(0, 2))
    behind.finite = True
    assert to_the_end(behind) == []


def test_deltas_come_live_and_have_no_id(one: Bench) -> None:
    name = one.session()
    one.commit(name, "user.message", {"text": "x"})
    connected(one)
    reader = one.hub.follow(name, START)
    taken(reader, 1)
    key = f"{one.coord.prefix}:log:{name.text}"
    one.client.hset(key, mapping={"worker": "w", "epoch": "1"})
    raw = events.line("assistant.delta", "d" * 32, "2026", {"turn": "t", "text": "piece"})
    one.coord.delta(name.text, Holder("w", 1), raw)
    shown = until("the delta comes", lambda: reader.read(0.2))
    assert shown == b"event: assistant.delta\ndata: " + raw + b"\n\n"
    assert reader.position == Position(0, 0)
    reader.close()
    late = one.hub.follow(name, START)
    assert b"assistant.delta" not in late.read(0.2)
    late.close()


def test_frames_carry_the_cursor_twice_and_are_the_same_bytes_from_history_and_live(one: Bench) -> None:
    name = one.session()
    live = one.hub.follow(name, START)
    lives(one, name, live)
    one.say(name, 3)
    frames = b""
    while frames.count(b"\n\n") < 3:
        frames += live.read(1)
    past = one.hub.follow(name, Position(0, 0))
    assert past.read(1) == frames
    for each in frames.decode().strip().split("\n\n"):
        found = re.fullmatch(r'id: (\S+)\nevent: assistant\.message\ndata: \{"type".*,"cursor":"(\S+)"\}', each)
        assert found
        assert found[1] == found[2]
    for reader in (live, past):
        reader.close()


def test_who_comes_while_the_last_one_goes_is_subscribed(one: Bench) -> None:
    name = one.session()
    first = one.hub.follow(name, START)
    real = one.hub._subscription.unsubscribe
    came: list[Follower] = []

    def late(channel: str) -> None:
        thread = threading.Thread(target=lambda: came.append(one.hub.follow(name, START)))
        thread.start()
        thread.join(0.2)
        real(channel)

    one.hub._subscription.unsubscribe = late  # type: ignore[method-assign]
    first.close()
    one.hub._subscription.unsubscribe = real  # type: ignore[method-assign]
    until("it follows", lambda: came)
    until(
        "the server knows",
        lambda: dict(one.client.pubsub_numsub(one.coord.channel(name.text)))[one.coord.channel(name.text).encode()],
    )
    lives(one, name, came[0])
    came[0].close()


def test_nothing_is_left_when_all_have_gone(one: Bench) -> None:
    name = one.session()
    readers = [one.hub.follow(name, START) for _ in range(10)]
    assert one.hub.followers() == 10
    ends = [one.hub.watch(name, lambda: None), one.hub.hear("some:channel", lambda _: None)]
    for reader in readers:
        reader.close()
        reader.close()
    assert one.hub.followers() == 0
    for end in ends:
        end()
        end()
    until("no channel is left", lambda: not one.client.pubsub_channels(one.coord.prefix.replace("{", "[{]") + "*"))
    assert not one.hub._feeds


@pytest.mark.usefixtures("quick")
def test_watchers_hear_of_inputs_of_revocations_and_after_a_cut(one: Bench) -> None:
    name = one.session()
    heard: list[int] = []
    connected(one)
    end = one.hub.watch(name, lambda: heard.append(1))
    one.say(name, 3)
    one.commit(name, "user.message", {"text": "x"})
    until("it heard of the input", lambda: heard)
    assert len(heard) == 1, "output is no news for a worker"
    one.coord.revoke(name.text, 1000)
    until("it heard of the revocation", lambda: len(heard) == 2)
    one.client.client_kill_filter(_type="pubsub")
    until("it is told that it may have missed something", lambda: len(heard) == 3)
    end()


def test_the_hub_ends_its_followers_and_its_thread(one: Bench) -> None:
    name = one.session()
    said = one.say(name, 2)
    reader = one.hub.follow(name, START)
    assert taken(reader, 2) == said
    began = time.monotonic()
    one.hub.close()
    assert time.monotonic() - began < 2.0
    assert to_the_end(reader) == []
    thread = one.hub._subscription._thread
    assert thread
    assert not thread.is_alive()
