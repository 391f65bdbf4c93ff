"""Folding stretches of an archived session log: states, idempotency keys, ids of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.core import chain as chains
from app.core.chain import Chain
from app.core.errors import Corrupt
from app.core.session import STATEFUL, Checkpoint, State, restored, step
from app.log import events
from app.log.keyindex import Input, inputs_of
from app.log.segments import Segments
from app.store import keys
from app.store.keys import LogName

KEPT_IDS = 256
"""How many of the latest inputs' ids go back into Redis: an append is repeated for seconds, not for hundreds of inputs."""


def over(state: State, gen: int, first: int, lines: Iterable[bytes]) -> State:
    """The state after `lines`, which stand from offset `first` of generation `gen` on. Raises IllegalStep."""
    for offset, raw in enumerate(lines, first):
        kind = events.kind_of(raw)
        if kind in STATEFUL:
            e = events.parse(raw)
            state = step(state, kind, e["id"], e["time"], e["data"], gen, offset)
    return state


def state_at(segments: Segments, log: LogName, chain: Chain, offset: int) -> tuple[State, str]:
    """The folded state of everything below `offset`, and the mark of the segment that holds the last event of it.

    Costs one segment, or two if `offset` lies within one. A generation that began by a restore begins settled.
    """
    if offset == 0:
        return State(), ""
    gen = chains.owner(chain, offset - 1)
    found = segments.find(log, gen, offset - 1)
    if found is None:
        raise Corrupt(f"the log lacks offset {offset - 1}", keys.segment(log, gen.gen, offset - 1))
    if found.end == offset:
        return State.from_json(found.state), found.mark
    before = start_state(segments, log, chain, gen.gen) if found.first == gen.start else None
    if before is None:
        previous = segments.find(log, gen, found.first - 1)
        before = State.from_json(previous.state) if previous else State()
    return over(before, gen.gen, found.first, found.lines[: offset - found.first]), found.mark


def start_state(segments: Segments, log: LogName, chain: Chain, gen: int) -> State:
    """The state in which generation `gen` begins."""
    index = next(i for i, e in enumerate(chain) if e.gen == gen)
    entry, before = chain[index], chain[:index]
    if not before:
        return State()
    if before[-1].start == entry.start:
        # nothing was archived in the one before: if it began by a restore, so does this one
        state = start_state(segments, log, before, before[-1].gen)
    else:
        state, _ = state_at(segments, log, before, entry.start)
    if entry.restored:
        checkpoint = state.checkpoint
        if checkpoint is None or checkpoint.id != entry.restored:
            raise Corrupt(f"checkpoint {entry.restored} isn't where the chain says", keys.head_object(log))
        state = restored(state, Checkpoint(checkpoint.id, checkpoint.gen, checkpoint.offset, checkpoint.time))
    return state


def inputs(segments: Segments, log: LogName, chain: Chain, upto: int) -> tuple[dict[str, str], dict[str, int]]:
    """Idempotency keys (digest -> "gen offset id body") and the ids of the latest inputs, of everything below `upto`.

    Keys hold for the life of a session, so this looks at all of it: at the key indexes of what is compacted, at the rest itself.
    """
    found_keys: dict[str, str] = {}
    ids: dict[str, int] = {}
    for gen, each in _all_inputs(segments, log, chain, upto):
        ids[each.id] = each.offset
        if each.key:
            found_keys[each.key] = f"{gen} {each.offset} {each.id} {each.body}"
    latest = dict(sorted(ids.items(), key=lambda pair: pair[1])[-KEPT_IDS:])
    return found_keys, latest


def _all_inputs(segments: Segments, log: LogName, chain: Chain, upto: int) -> Iterator[tuple[int, Input]]:
    offset = 0
    while offset < upto:
        gen = chains.owner(chain, offset)
        limit = min(chains.end(chain, gen.gen) or upto, upto)
        indexed = segments.inputs(log, gen, offset) if offset < gen.boundary else None
        if indexed:
            end, found = indexed
            end = min(end, limit)
        else:
            segment = next(segments.covering(log, chain, offset, limit), None)
            if segment is None:
                return
            end, found = min(segment.end, limit), list(inputs_of(segment))
        yield from ((gen.gen, each) for each in found if offset <= each.offset < end)
        offset = end
