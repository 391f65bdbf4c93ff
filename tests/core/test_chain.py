"""The generation chain against a brute-force walk: each offset has one owner, and a cursor is valid where its generation rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import chain
from app.core.chain import Chain, Generation
from app.core.cursor import START, Position


@st.composite
def chains(draw: st.DrawFn) -> tuple[Chain, int]:
    """A chain as recoveries (start at the end) and restores (start earlier) make it, and the log's next offset."""
    entries = [Generation(0, 0, "a")]
    reached = draw(st.integers(0, 12))
    for gen in range(1, draw(st.integers(1, 6))):
        start = draw(st.one_of(st.just(reached), st.integers(0, reached)))
        entries.append(Generation(gen, start, "a", start, "c" * 32 if start < reached else None))
        reached = start + draw(st.integers(0, 6))
    return tuple(entries), reached


def walk(made: Chain, reached: int) -> dict[int, int]:
    """Offset -> generation, by writing each generation over what it cut off."""
    log: dict[int, int] = {}
    for i, entry in enumerate(made):
        for offset in [o for o in log if o >= entry.start]:
            del log[offset]
        upto = reached if i == len(made) - 1 else made[i + 1].start
        for offset in range(entry.start, max(upto, entry.start)):
            log[offset] = entry.gen
    return log


@given(chains())
def test_each_offset_has_exactly_one_owner(made: tuple[Chain, int]) -> None:
    entries, reached = made
    log = walk(entries, reached)
    assert sorted(log) == list(range(reached)), "offsets are dense"
    for offset, gen in log.items():
        assert chain.owner(entries, offset).gen == gen
        assert chain.at(entries, offset) == Position(gen, offset)


@given(chains())
def test_covers_agrees_with_the_walk(made: tuple[Chain, int]) -> None:
    entries, reached = made
    log = walk(entries, reached)
    for gen in range(len(entries) + 1):
        for offset in range(20):
            assert chain.covers(entries, Position(gen, offset), reached) == (log.get(offset) == gen)
        assert chain.covers(entries, Position(gen, -1), reached) == (gen < len(entries))


@given(chains())
def test_an_open_end_is_bounded_only_where_it_is_known(made: tuple[Chain, int]) -> None:
    entries, reached = made
    last = entries[-1]
    assert chain.covers(entries, Position(last.gen, last.start + 1000), None)
    assert not chain.covers(entries, Position(last.gen, max(reached, last.start)), reached)


@given(chains(), st.integers(0, 7), st.integers(-1, 20))
def test_the_last_good_place_is_in_the_log_and_loses_nothing_that_is_still_there(
    made: tuple[Chain, int], gen: int, offset: int
) -> None:
    entries, reached = made
    log = walk(entries, reached)
    good = chain.last_good(entries, Position(gen, offset))
    assert good.offset <= offset or good == START
    if gen < len(entries) and offset >= entries[gen].start and good.offset >= 0 and good.offset < reached:
        assert chain.covers(entries, good, reached)
        # whatever lies between is what this generation no longer has
        assert all(log.get(o) != gen for o in range(good.offset + 1, offset + 1))


@given(chains())
def test_json_round_trip(made: tuple[Chain, int]) -> None:
    for entry in made[0]:
        assert Generation.from_json(entry.to_json()) == entry


def test_what_is_not_there() -> None:
    only = (Generation(3, 5, "a"),)
    with pytest.raises(KeyError):
        chain.owner(only, 4)
    with pytest.raises(KeyError):
        chain.end(only, 2)
    assert chain.end(only, 3) is None
