"""What one session's log really is: followed in the object store, object by object, as each one lands.

Rules: it trusts nothing of the code under test but the bytes' format, the table of steps and the placing rule of chains. It goes
forward only: an archived event is read once, when it first became part of the log, and may never change. Every rule that an archived
log must keep is checked here, for each event as it comes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson

from app.core.chain import Generation
from app.core.errors import IllegalStep
from app.core.session import SETTLING, STATEFUL, Checkpoint, State, restored, step
from app.log import segment as segments
from app.store import keys
from app.store.contract import Absent
from app.store.keys import LogName
from app.store.memory import MemoryStore

OUTPUT = frozenset({"assistant.message", "assistant.thinking", "tool.call", "tool.result", "tool.progress"})


@dataclasses.dataclass(frozen=True)
class Fact:
    """An event that is part of the log, or was."""

    gen: int
    offset: int
    raw: bytes
    event: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.event["id"])


@dataclasses.dataclass
class Fold:
    """What follows from the log up to some offset. `memory` is what the agent remembers in each checkpoint."""

    state: State = dataclasses.field(default_factory=State)
    epoch: int = 0
    epochs: dict[int, str] = dataclasses.field(default_factory=dict)
    memory: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: {"": ()})


class Truth:
    """Of one session. `violate` is told what is wrong, once."""

    def __init__(self, name: LogName, objects: MemoryStore, violate: Callable[[str], None]) -> None:
        self.name, self._objects, self._violate = name, objects, violate
        self.facts: list[Fact] = []
        self.folds: list[Fold] = [Fold()]
        self.chain: list[Generation] = []
        self.at: dict[tuple[int, int], bytes] = {}
        """Every place that ever held an archived event of the log."""
        self.started: dict[str, dict[str, Any]] = {}
        self.settled: dict[str, dict[str, Any]] = {}
        """Every turn that ever started, or was settled, in the archived log: the event's data and kind."""
        self.dropped: set[str] = set()
        """Ids of events that a restore took back."""
        self.restores = 0
        self.epoch = 0
        self._ids: set[str] = set()
        self._keys: dict[str, str] = {}
        self._before: dict[str, Any] = {}

    @property
    def head(self) -> int:
        """The offset after the last archived event."""
        return len(self.facts)

    @property
    def fold(self) -> Fold:
        return self.folds[-1]

    @property
    def state(self) -> State:
        return self.fold.state

    @property
    def ids(self) -> set[str]:
        """Of all events in the log."""
        return self._ids

    def refresh(self) -> None:
        """Takes in what has landed since."""
        try:
            doc = orjson.loads(self._objects.get(keys.head_object(self.name)).body)
        except Absent:
            if self.chain:
                self._violate("session.json is gone")
            return
        if doc != self._before:
            self._document(doc)
        self._walk()

    def _document(self, doc: dict[str, Any]) -> None:
        self._before = doc
        if doc["epoch"] < self.epoch:
            self._violate(f"the epoch in session.json fell from {self.epoch} to {doc['epoch']}")
        self.epoch = doc["epoch"]
        chain = [Generation.from_json(g) for g in doc["chain"]]
        known = len(self.chain)
        for old, new in zip(self.chain, chain, strict=False):
            if (old.gen, old.start, old.inc, old.restored) != (new.gen, new.start, new.inc, new.restored):
                self._violate(f"generation {old.gen} changed in the chain")
            if new.boundary < old.boundary:
                self._violate(f"the boundary of generation {old.gen} fell")
        if len(chain) < known:
            self._violate("the chain lost a generation")
        self.chain = chain[:known]
        for entry in chain[known:]:
            self._walk()
            self._add(entry)
        self.chain = chain

    def _add(self, entry: Generation) -> None:
        if self.chain and entry.gen != self.chain[-1].gen + 1:
            self._violate(f"generation {entry.gen} follows {self.chain[-1].gen}")
        if entry.start != self.head:
            if not entry.restored:
                self._violate(f"generation {entry.gen} starts at {entry.start}, but the log ended at {self.head}")
            self._cut(entry)
        if entry.restored:
            checkpoint = self.state.checkpoint
            if checkpoint is None or checkpoint.id != entry.restored:
                self._violate(f"restored to {entry.restored}, where there is no such checkpoint")
                return
            at = Checkpoint(checkpoint.id, checkpoint.gen, checkpoint.offset, checkpoint.time)
            self.folds[-1] = dataclasses.replace(self.fold, state=restored(self.state, at))
        self.chain.append(entry)

    def _cut(self, entry: Generation) -> None:
        state = self.state
        if state.turn or state.queue:
            self._violate("a restore dropped what was not settled")
        lost = self.facts[entry.start :]
        self.restores += 1
        self.dropped.update(f.id for f in lost)
        self._ids.difference_update(f.id for f in lost)
        self._keys = {key: id for key, id in self._keys.items() if id in self._ids}
        del self.facts[entry.start :], self.folds[entry.start + 1 :]
        # a checkpoint that was left behind can be named again by nobody, but its memory was real; epochs never come back
        self.folds[-1] = dataclasses.replace(self.fold)

    def _walk(self) -> None:
        if not self.chain:
            return
        gen = self.chain[-1].gen
        while True:
            key = keys.segment(self.name, gen, self.head)
            try:
                found = segments.decode(key, self._objects.get(key).body)
            except Absent:
                return
            if isinstance(found, segments.Fence):
                return
            for raw in found.lines:
                self._event(gen, raw)
            if State.from_json(found.state) != self.state:
                self._violate(f"segment {gen}/{found.first} carries another state than its events make")

    def _event(self, gen: int, raw: bytes) -> None:
        event = orjson.loads(raw)
        fact = Fact(gen, self.head, raw, event)
        data, kind = event["data"], event["type"]
        if event["id"] in self._ids:
            self._violate(f"event {event['id']} is in the log twice")
        self._ids.add(event["id"])
        key = data.get("key")
        if key is not None:
            if key in self._keys:
                self._violate(f"key {key} is in the log twice")
            self._keys[key] = event["id"]
        before = self.at.setdefault((gen, fact.offset), raw)
        if before != raw:
            self._violate(f"offset {fact.offset} of generation {gen} changed its meaning")
        self.folds.append(self._folded(fact, kind, data))
        self.facts.append(fact)

    def _folded(self, fact: Fact, kind: str, data: dict[str, Any]) -> Fold:
        fold = self.fold
        state = fold.state
        if state.status == "closed":
            self._violate(f"{kind} after the session was closed")
        if kind in OUTPUT and (state.turn is None or state.turn.id != data.get("turn")):
            self._violate(f"{kind} of turn {data.get('turn')}, which isn't open")
        if kind == "assistant.message" and state.turn:
            self._writer(fold, state.turn.epoch, data["text"])
        if kind not in STATEFUL:
            return fold
        try:
            after = step(state, kind, fact.id, fact.event["time"], data, fact.gen, fact.offset)
        except IllegalStep as error:
            self._violate(f"illegal step in the log: {error.message}")
            return fold
        fold = dataclasses.replace(fold, state=after)
        if kind == "turn.started":
            if data["epoch"] < fold.epoch:
                self._violate(f"epoch {data['epoch']} follows {fold.epoch} in the log")
            if data["turn"] in self.started:
                self._violate(f"turn {data['turn']} started twice")
            self.started[data["turn"]] = data
            fold.epoch = data["epoch"]
        if kind in SETTLING:
            if data["turn"] in self.settled:
                self._violate(f"turn {data['turn']} was settled twice")
            self.settled[data["turn"]] = {**data, "kind": kind}
            if data.get("checkpoint") and state.turn:
                kept = self._remembered(state)
                returned = data.get("returned", ())
                new = tuple(q.id for q in state.turn.inputs if q.id not in returned)
                fold.memory = {**fold.memory, data["checkpoint"]: kept + new}
        return fold

    def _writer(self, fold: Fold, epoch: int, text: str) -> None:
        """Each message of the simulated agent begins with the name of the worker that runs it."""
        worker = text.split(" ")[0]
        if fold.epochs.setdefault(epoch, worker) != worker:
            self._violate(f"two writers of output in epoch {epoch}")

    def _remembered(self, state: State) -> tuple[str, ...]:
        return self.fold.memory.get(state.checkpoint.id if state.checkpoint else "", ())

    def remembered(self) -> tuple[str, ...]:
        """The ids of the inputs that the agent remembers at the last checkpoint."""
        return self._remembered(self.state)
