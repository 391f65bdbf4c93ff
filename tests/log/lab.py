"""A laboratory for logs: real log, writer and restore code over a store and a Redis stand-in in memory, with a clock of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import orjson

from app.coord.coord import Key
from app.coord.fake import FakeCoord
from app.core import ids
from app.core.cursor import START, Position
from app.core.errors import Corrupt, CursorUnavailable, Unavailable
from app.core.session import Checkpoint, Status
from app.log import events, fold, heads
from app.log.archiver import Place
from app.log.log import Log, View
from app.log.recover import current
from app.services.restoring import Restoring
from app.services.writer import Clock, Draft, Writer
from app.store import keys
from app.store.contract import Store
from app.store.keys import LogName
from app.store.memory import MemoryStore
from app.store.puts import Pace

START_OF_TIME = 1_700_000_000.0


class Ticker(Clock):
    """Wall clock, monotonic clock and chance of a lab. Sleeping takes no time but this clock's."""

    def __init__(self, seed: int = 0) -> None:
        self.at = START_OF_TIME
        self.rng = random.Random(seed)
        self.pace = Pace(
            now=lambda: self.at, sleep=self.sleep, random=self.rng.random, token=lambda: self.rng.randbytes(16).hex()
        )

    def now(self) -> float:
        return self.at

    def id(self) -> str:
        return ids.make(int(self.at * 1000), self.rng.randbytes(10))

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Lab:
    """One session's log. `log()` gives a process with cold caches, `main` is one that lives on."""

    def __init__(self, seed: int = 0, store: Store | None = None) -> None:
        self.clock = Ticker(seed)
        self.rng = random.Random(seed)
        self.store: Store = store or MemoryStore()
        self.coord = FakeCoord(lambda: int(self.clock.at * 1000))
        self.name = LogName("acme", self.clock.id())
        doc = {"id": self.name.session, "harness": "script", "config": {"model": "m"}, "descriptors": [], "created_at": "now"}
        heads.create(self.store, self.name, self.coord.incarnation(), doc, self.clock.pace)
        self.main = self.log()
        self.keys: dict[str, str] = {}
        self._numbers = itertools.count()

    def log(self, store: Store | None = None) -> Log:
        """A process of its own."""
        return Log(store or self.store, self.coord, 1000, self.clock.pace)  # type: ignore[arg-type]

    @property
    def writer(self) -> Writer:
        return Writer(self.main, self.clock)

    @property
    def chain(self) -> Any:
        return heads.load(self.store, self.name).chain

    # What happens to a session

    def say(self, text: str = "", key: str | None = None) -> Place:
        """An acknowledged message."""
        data: dict[str, Any] = {"text": text or f"message {next(self._numbers)}"}
        if key:
            data["key"] = key
        draft = self.writer.draft("user.message", data)
        given = Key(events.key_digest(key), events.body_digest("user.message", data)) if key else None
        done = self.writer.commit(self.name, lambda _: [draft], key=given)
        assert done
        if key:
            self.keys[key] = done.place.id
        return done.place

    def output(self, count: int = 1, archive: bool = True) -> None:
        """Lines of the agent, in a segment of their own."""
        batch = []
        for _ in range(count):
            draft = self.writer.draft("assistant.message", {"text": "x" * self.rng.randint(1, 60)})
            batch.append((draft.id, draft.line()))
        while self.main.append(self.name, batch).answer != "OK":
            self.main.recovery.recover(self.name)
        if archive:
            self.main.archive(self.name)

    def turn(self, outputs: int = 2, end: str = "turn.completed") -> str:
        """A turn over what waits; gives its checkpoint, empty if it has none."""
        turn = self.clock.id()
        view = self.main.view(self.name)
        first = view.state.queue[0]
        started = {"turn": turn, "epoch": 1, "inputs": [first.id], "harness": "script", "model": "m"}
        self.writer.commit(self.name, lambda _: [self.writer.draft("turn.started", started, first.id)])
        since = self.main.view(self.name).state.turn
        assert since
        for _ in range(outputs):
            self.output(self.rng.randint(1, 4))
        data: dict[str, Any] = {"turn": turn}
        checkpoint = ""
        if end == "turn.completed":
            checkpoint = self.checkpoint(since.gen, int(since.since))
            data |= {"checkpoint": checkpoint, "usage": {"tokens": 3}}
        else:
            data["reason"] = "harness"
        view = self.main.view(self.name)
        if view.state.turn and view.state.turn.id == turn:
            self.writer.commit(self.name, lambda _: [self.writer.draft(end, data)])
        return checkpoint

    def checkpoint(self, gen: int, offset: int, chunks: list[str] | None = None) -> str:
        """A manifest as a worker leaves it."""
        ckpt = self.clock.id()
        assert self.name.session
        manifest = {
            "id": ckpt,
            "files": [{"path": "home/x", "size": 1, "mode": 420, "chunks": chunks or []}],
            "meta": {"gen": gen, "offset": offset},
        }
        self.store.put(keys.checkpoint(self.name.tenant, self.name.session, ckpt), orjson.dumps(manifest))
        return ckpt

    def resume(self) -> None:
        Restoring(self.writer, 1000).resume(self.name)

    def restore(self, checkpoint: str) -> None:
        Restoring(self.writer, 1000).restore(self.name, checkpoint)

    def restart(self) -> None:
        """Redis is another process, with all or with nothing of what it had."""
        if self.rng.random() < 0.5:
            self.coord.flush()
        else:
            self.coord.restart()

    def live(self, steps: int, *, unarchived: bool = False) -> None:
        """A random life: turns, messages, restarts, restores to any checkpoint."""
        checkpoints: list[str] = []
        for _ in range(steps):
            self.clock.at += self.rng.random() * 10
            what = self.rng.choice(["say", "turn", "turn", "output", "restart", "restore"])
            state = self.main.view(self.name).state
            if state.status in (Status.INTERRUPTED, Status.FAILED):
                self.resume()
            elif what == "output":
                self.output(self.rng.randint(1, 5), archive=not unarchived or self.rng.random() < 0.6)
            elif what == "restart":
                self.restart()
            elif what == "restore" and checkpoints and not state.queue and not state.turn:
                self._restore_any(checkpoints)
            elif what == "turn" and state.queue:
                end = self.rng.choice(["turn.completed", "turn.completed", "turn.interrupted"])
                checkpoints += filter(None, [self.turn(self.rng.randint(0, 4), end)])
            else:
                self.say(key=f"k{next(self._numbers)}" if self.rng.random() < 0.7 else None)

    def _restore_any(self, checkpoints: list[str]) -> None:
        target = self.rng.choice(checkpoints)
        try:
            self.restore(target)
        except Exception as error:
            if "left behind" not in str(error):
                raise
            checkpoints.remove(target)

    # What a reader sees

    def seen(self, limit: int = 4) -> dict[str, Any]:
        """What a reader with cold caches is given from every cursor there is, from Redis and from the store; states and keys."""
        chain = self.chain
        top = max(current(self.log().segments, self.name, chain)[2], *(gen.start for gen in chain)) + 2
        places = [Position(g, o) for g in range(len(chain) + 1) for o in range(top)]
        out: dict[str, Any] = {}
        for how, log, step in (("redis", self.log(), 5), ("store", self.log(), 2)):
            if how == "store":
                log.coord = Cold()  # type: ignore[assignment]
            out |= {f"{how} {place}": _read(log, self.name, place, limit) for place in places[::step]}
            out[how] = _read(log, self.name, START, 10**6)
        log = self.log()
        state, mark, upto = current(log.segments, self.name, chain)
        out["state"] = (state.to_json(), mark, upto)
        out["inputs"] = fold.inputs(log.segments, self.name, chain, upto)
        out["states"] = [fold.state_at(log.segments, self.name, chain, o)[0].to_json() for o in range(upto + 1)]
        return out

    def small(self, name: LogName | None = None) -> list[str]:
        return all_keys(self.store, keys.session_prefix("acme", (name or self.name).session or "") + "log/")


class Cold:
    """A Redis that can be reached and knows nothing."""

    def tail(self, *_: object) -> None:
        return None

    def look(self, *_: object) -> None:
        return None


def _read(log: Log, name: LogName, place: Position, limit: int) -> Any:
    try:
        page = log.read(name, place, limit)
        return [(e.position, e.raw) for e in page.entries], page.end
    except CursorUnavailable as error:
        return error.earliest
    except (Corrupt, Unavailable) as error:
        return repr(error)


def all_keys(store: Store, prefix: str) -> list[str]:
    found: list[str] = []
    while page := store.list(prefix, start_after=found[-1] if found else ""):
        found += page
    return found


def drafts(*made: Draft) -> Callable[[View], list[Draft]]:
    return lambda _: list(made)


def checkpoint_of(lab: Lab) -> Checkpoint | None:
    return lab.main.view(lab.name).state.checkpoint
