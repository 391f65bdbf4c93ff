"""Whatever makes a server forget makes another incarnation of it, also for a process that has known the one before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.core.cursor import START, Position
from app.core.errors import CursorUnavailable
from app.store.contract import Store
from tests.log.bench import Bench


def test_a_flush_is_another_incarnation_each_time(store: Store, bench: Callable[[Store], Bench]) -> None:
    one = bench(store)
    seen = [one.coord.incarnation()]
    for _ in range(3):
        assert one.coord.incarnation() == seen[-1]
        one.client.flushall()
        seen.append(one.coord.incarnation())
    assert len(set(seen)) == 4


def test_what_a_flush_lost_is_never_taken_for_what_came_after(store: Store, bench: Callable[[Store], Bench]) -> None:
    one = bench(store)
    name = one.session()
    one.say(name, 3)
    one.log.archive(name)
    one.say(name, 2)
    lost = Position(0, 4)
    assert one.read(name, lost) == []
    one.client.flushall()
    one.say(name, 5)
    with pytest.raises(CursorUnavailable):
        one.log.read(name, lost, 10)
    assert [p for p, _ in one.read(name, START)] == [
        *(Position(0, o) for o in range(3)),
        *(Position(1, o) for o in range(3, 8)),
    ]
