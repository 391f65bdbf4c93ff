"""Checkpoints of a session: what is published, going back to the last one, going back to any.

Rules: the last archived event that names a checkpoint decides which one is the latest; the pointer in `session.json` is a cache of
that. Going back never rewrites the log: `resume` appends, `restore` begins a new generation at the checkpoint's offset.
"""

from __future__ import annotations

from typing import Any

import orjson

from app.core import chain as chains
from app.core import input as rules
from app.core.cursor import Position
from app.core.errors import Conflict, Missing, Unavailable
from app.core.input import Refused
from app.core.session import SETTLING, Checkpoint, State, Status
from app.log import events, fold, heads
from app.log.heads import LogHead
from app.log.log import View
from app.log.recover import current
from app.log.rewind import rewind
from app.log.segment import unmark
from app.services.writer import Draft, Writer
from app.store import keys
from app.store.contract import Absent
from app.store.keys import LogName

TRIES = 8
PAGE = 1000


class Restoring:
    """`grace_ms` is how long a lease's holder may still believe in it."""

    def __init__(self, writer: Writer, grace_ms: int) -> None:
        self._writer, self._log, self._grace_ms = writer, writer.log, grace_ms

    def sync(self, name: LogName) -> dict[str, Any]:
        """The contract's SyncStatus. Offsets are the next one to be read."""
        tail = self._log.coord.tail(name.text, -1, 0)
        if tail:
            self._log.head(name)
            published, now = _state(tail.astate), _state(tail.state)
            total, arch, pending = unmark(tail.asha)[1], tail.arch, tail.arch < tail.next or now.turn is not None
        else:
            head = self._log.keep(name, heads.load(self._log.store, name, self._log.pace))
            published, mark, arch = current(self._log.segments, name, head.chain)
            total, pending = unmark(mark)[1], published.turn is not None
        shown: dict[str, Any] = {"history_bytes": total, "resume_offset": arch, "pending": pending}
        if published.checkpoint:
            shown |= {
                "checkpoint": published.checkpoint.id,
                "native_checkpoint": published.checkpoint.id,
                "time": published.checkpoint.time,
            }
        return shown

    def flush(self, name: LogName) -> dict[str, Any]:
        """Archives everything, repairs the pointer in `session.json`, and answers as `sync`."""
        self._log.head(name)
        view = self._log.view(name)
        for _ in range(TRIES):
            if self._log.archive(name, gen=view.gen):
                break
            view = self._log.view(name)
        else:
            raise Unavailable("the session's log can't be archived now")
        publish(self._writer, name, view.state.checkpoint, view.gen)
        return self.sync(name)

    def resume(self, name: LogName) -> None:
        """Appends `session.resumed`; the next turn starts from the last completed checkpoint. Raises Conflict."""
        self._log.head(name)

        was: list[Status] = []

        def decide(view: View) -> list[Draft]:
            decision = rules.resume(view.state)
            if isinstance(decision, Refused):
                raise Conflict(decision.why)
            was[:] = [view.state.status]
            since = view.state.checkpoint.offset if view.state.checkpoint else 0
            assert isinstance(since, int)
            return [self._writer.draft(decision.kind, {**decision.data, "dropped": self._dropped(name, since)})]

        self._writer.commit(name, decide)
        if was == [Status.FAILED]:
            # somebody has looked at it; an interrupted session still counts, or one that kills its workers would never end
            heads.change(self._log.store, name, lambda head: {"attempts": 0} if head.attempts else None, self._log.pace)

    def _dropped(self, name: LogName, since: int) -> list[str]:
        """Ids of the turns after the last checkpoint: the agent doesn't know of them any more."""
        taken: dict[str, None] = {}
        after = self._log.position(name, since - 1)
        while True:
            page = self._log.read(name, after, PAGE)
            for entry in page.entries:
                if entry.raw.startswith(b'{"type":"turn.started"'):
                    taken[events.parse(entry.raw)["data"]["turn"]] = None
            if page.end or not page.entries:
                return list(taken)
            after = page.entries[-1].position

    def restore(self, name: LogName, checkpoint: str) -> None:
        """Begins a new generation at `checkpoint`. Raises Missing if it is unknown, Conflict if it isn't in the log or not settled."""
        self._log.head(name)
        for _ in range(TRIES):
            view = self._log.view(name)
            decision = rules.restore(view.state)
            if isinstance(decision, Refused):
                raise Conflict(decision.why)
            if not self._log.archive(name, gen=view.gen):
                continue
            now = self._log.view(name)
            if (now.gen, now.next, now.arch) != (view.gen, view.next, view.next):
                continue  # something came since: a segment may begin before it and hold it, and a fence after that would cut it off
            target = self._find(name, view, checkpoint)
            assert isinstance(target.offset, int)
            pointer = {"checkpoint": {"id": target.id, "gen": target.gen, "offset": target.offset}, "attempts": 0}
            if rewind(self._log, name, view.gen, view.next, target.offset, target.id, pointer):
                self._announce(name, target)
                return
        raise Unavailable("the session changes too fast to be restored")

    def _announce(self, name: LogName, target: Checkpoint) -> None:
        assert isinstance(target.offset, int)
        head = self._log.head(name)
        at, _ = fold.state_at(self._log.segments, name, head.chain[:-1], target.offset)
        data = {"checkpoint": target.id, "withdrawn": [q.id for q in at.queue]}

        def decide(view: View) -> list[Draft]:
            return [self._writer.draft("session.restored", data)] if view.state.status is Status.IDLE else []

        self._writer.commit(name, decide)

    def _find(self, name: LogName, view: View, checkpoint: str) -> Checkpoint:
        if view.state.checkpoint and view.state.checkpoint.id == checkpoint:
            return view.state.checkpoint
        assert name.session
        try:
            manifest = orjson.loads(heads.fetch(self._log.store, keys.checkpoint(name.tenant, name.session, checkpoint)))
        except (Absent, ValueError):
            raise Missing("no such checkpoint") from None
        after = Position(manifest["meta"]["gen"], manifest["meta"]["offset"])
        gone = Conflict("that checkpoint was left behind by an earlier restore")
        if not chains.covers(self._log.head(name, view.gen).chain, after, view.next):
            raise gone
        while True:
            page = self._log.read(name, after, PAGE)
            for entry in page.entries:
                if events.kind_of(entry.raw) in SETTLING:
                    e = events.parse(entry.raw)
                    if e["data"].get("checkpoint") == checkpoint:
                        return Checkpoint(checkpoint, entry.position.gen, entry.position.offset + 1, e["time"])
            if page.end or not page.entries:
                raise gone
            after = page.entries[-1].position


def publish(writer: Writer, name: LogName, checkpoint: Checkpoint | None, gen: int) -> None:
    """Repairs the checkpoint pointer in `session.json`, if it is behind `checkpoint`, the last one that was seen in generation `gen`.

    Within a generation checkpoints only follow each other: whoever comes late, with an older one, leaves it as it is.
    """
    if checkpoint is None:
        return
    assert isinstance(checkpoint.offset, int)
    place = (checkpoint.gen, checkpoint.offset)
    pointer = {"id": checkpoint.id, "gen": checkpoint.gen, "offset": checkpoint.offset}

    def point(head: LogHead) -> dict[str, Any] | None:
        there = head.doc.get("checkpoint")
        behind = there is None or (there["gen"], there["offset"]) < place
        return {"checkpoint": pointer} if behind and head.last.gen == gen else None

    writer.log.keep(name, heads.change(writer.log.store, name, point, writer.log.pace))


def _state(raw: bytes) -> State:
    return State.from_json(orjson.loads(raw))
