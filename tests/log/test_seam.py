"""Append, archive, trim, loss of Redis and restore in any order: whoever reads from any place gets exactly what follows, or a 409."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from app.core.cursor import START, Position, decode
from app.core.errors import CursorUnavailable
from app.log import events
from app.store.contract import Store
from app.store.keys import LogName
from tests.log.bench import Bench

ROUNDS = 40


class Model:
    """What the log must be: `ids` by offset with their generations, everything below `arch` for good."""

    def __init__(self, bench: Bench, name: LogName, rng: random.Random) -> None:
        self.bench, self.name, self.rng = bench, name, rng
        self.log: list[tuple[Position, str]] = []
        self.gen = 0
        self.checkpoints: list[tuple[str, int]] = []
        self.gone: list[Position] = []

    def add(self, made: list[str]) -> None:
        self.log += [(Position(self.gen, len(self.log) + i), each) for i, each in enumerate(made)]

    def arch(self) -> int:
        tail = self.bench.coord.tail(self.name.text, -1, 0)
        return tail.arch if tail else len(self.log)

    # What can happen

    def say(self) -> None:
        self.add(self.bench.say(self.name, self.rng.choice([1, 2, 7, 90])))

    def archive(self) -> None:
        assert self.bench.log.archive(self.name) or not self.log

    def trim(self) -> None:
        """As far as it may be: a real server keeps a few more."""
        self.bench.client.xtrim(f"{self.bench.coord.prefix}:tail:{self.name.text}:{self.gen}", minid=f"{self.arch()}-1")

    def input(self) -> None:
        """Without a queue that grows: a message that is withdrawn at once."""
        message = self.bench.commit(self.name, "user.message", {"text": "x"}).place
        withdrawn = self.bench.commit(self.name, "input.withdrawn", {"input": message.id}).place
        self.add([message.id, withdrawn.id])

    def turn(self) -> None:
        checkpoint = self.bench.turn(self.name, self.rng.choice([1, 5]))
        # its ids aren't known here; the places are, and that nothing before has changed
        page = self.bench.read(self.name, self.log[-1][0] if self.log else START)
        self.log += page
        self.checkpoints.append((checkpoint, len(self.log)))

    def lose_redis(self) -> None:
        """All of it: what isn't archived is gone, and a new generation begins at the archive's head."""
        arch = self.arch()
        self.bench.client.flushall()
        self.cut(arch)
        self.bench.log.view(self.name)

    def restart_redis(self) -> None:
        """Its incarnation changes, although its data may survive."""
        arch = self.arch()
        self.bench.client.delete(f"{self.bench.coord.prefix}:boot")
        self.cut(arch)
        self.bench.log.view(self.name)

    def restore(self) -> None:
        if not self.checkpoints:
            return
        checkpoint, offset = self.rng.choice(self.checkpoints)
        self.bench.restoring.restore(self.name, checkpoint)
        self.cut(offset)
        self.checkpoints = [(c, o) for c, o in self.checkpoints if o <= offset]
        self.log += self.bench.read(self.name, self.log[-1][0])

    def cut(self, offset: int) -> None:
        self.gone += [position for position, _ in self.log[offset:]]
        del self.log[offset:]
        self.gen += 1

    # What must hold

    def check(self) -> None:
        cursors = [START, *(p for p, _ in self.rng.sample(self.log, min(4, len(self.log))))]
        for after in cursors:
            expected = self.log[after.offset + 1 :]
            assert self.bench.read(self.name, after, self.rng.choice([1, 3, 64, 1000])) == expected
        for lost in self.rng.sample(self.gone, min(3, len(self.gone))):
            with pytest.raises(CursorUnavailable) as caught:
                self.bench.read(self.name, lost)
            assert self.name.session
            good = decode(self.name.session, caught.value.earliest)
            assert self.bench.read(self.name, good) == self.log[good.offset + 1 :]
        future = Position(self.gen, len(self.log))
        with pytest.raises(CursorUnavailable):
            self.bench.read(self.name, future)


@pytest.mark.parametrize("seed", range(6))
def test_every_read_is_the_exact_suffix(seed: int, store: Store, bench: Callable[[Store], Bench]) -> None:
    rng = random.Random(seed)
    first = bench(store)
    model = Model(first, first.session(), rng)
    happenings = [model.say] * 6 + [model.archive] * 3 + [model.trim] * 3 + [model.input] * 2
    happenings += [model.turn] * 2 + [model.lose_redis, model.restart_redis, model.restore]
    reader = bench(store)
    reader.prefix, reader.coord.prefix = first.prefix, first.coord.prefix
    other = first.other()
    try:
        for _ in range(ROUNDS):
            rng.choice(happenings)()
            model.check()
            assert other.read(model.name, START) == model.log, "a process with other caches sees the same"
    finally:
        other.close()


def test_two_archivers_and_an_appender_lose_nothing(store: Store, bench: Callable[[Store], Bench]) -> None:
    """The same tail archived by two processes in turn, each with a look at the tail that the other has made old."""
    one = bench(store)
    two = one.other()
    name = one.session()
    said: list[str] = []
    try:
        for round in range(20):
            said += one.say(name, 3)
            old = two.coord.tail(name.text, -1, 4096)
            assert old
            said += one.say(name, 2)
            assert one.log.archive(name)
            assert two.log.archiver.once(name, old, None) in (None, True)
            head = two.log.head(name)
            assert len(head.chain) == 1, f"round {round}: a segment that is longer than what was seen is no other history"
        assert [events.id_of(e.raw) for e in two.log.read(name, START, 1000).entries] == said
    finally:
        two.close()
