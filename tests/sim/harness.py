"""A harness that is a task instead of a process, and what a runner needs of guardian, host and workspaces around it.

It plays turns with outputs and an end drawn from the run's generator, answers interrupts, takes steering in, goes deaf or exits; it is
killed with its worker, and when its deadline passes, also while its worker is paused. Its native state is the list of inputs that it got.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from app.core.errors import Fenced, Missing, Unavailable
from app.core.session import Checkpoint
from app.log import heads
from app.store import keys
from app.store.contract import Absent, Store, StoreError
from app.store.keys import LogName
from tests.sim.scheduler import Killed, Process
from tests.sim.shims import Condition
from tests.sim.world import World
from workers.harness.base import (
    Done,
    Failed,
    Input,
    Interrupted,
    Message,
    Output,
    Place,
    RateLimited,
    Steered,
    ToolCall,
    ToolResult,
    Turn,
)
from workers.mailbox import Mailbox
from workers.process import Deaf

if TYPE_CHECKING:
    from tests.sim.oracle import Oracle

RESULT = {"content": [{"type": "text", "text": "ok"}]}


class SimAdapter:
    """Translates to and from JSON that only `SimChild` understands."""

    name = "script"
    steers = True

    def environment(self, _: Place) -> dict[str, str]:
        return {}

    def start_turn(self, turn: Turn) -> bytes:
        return orjson.dumps({"turn": turn.turn_id, "inputs": [i.id for i in turn.inputs]})

    def steer(self, steering: Input) -> bytes | None:
        return orjson.dumps({"steer": steering.id})

    def interrupt(self) -> bytes | None:
        return orjson.dumps({"interrupt": True})


@dataclasses.dataclass(frozen=True)
class SimGuardian:
    """What `Tools.guardian` is for a simulated worker."""

    world: World
    oracle: Oracle
    worker: str
    process: Process
    disk: dict[str, list[str]]
    """Native states on the worker's disk, by session."""
    children: list[SimChild] = dataclasses.field(default_factory=list)


class SimChild:
    """The harness. Its tasks are a process of its own, so that a paused worker doesn't pause it."""

    def __init__(self, guardian: SimGuardian, log: str, memory: list[str], deadline: float) -> None:
        self._g, self._w, self._log = guardian, guardian.world, log
        self.memory = memory
        self.returncode: int | None = None
        self.deadline = deadline
        self.said: deque[Output] = deque()
        self.heard = Condition(self._w.scheduler)
        self._stdin: deque[dict[str, Any]] = deque()
        self._changed = Condition(self._w.scheduler)
        self._own = self._w.process("harness")
        self._turn = ""
        self._own.spawn(self._run, guardian.worker)
        guardian.children.append(self)

    def send(self, data: bytes) -> None:
        self._w.scheduler.sleep(self._w.rng.random() * 0.001)
        self._check()
        if self.returncode is not None:
            raise Deaf("the harness has closed its input")
        message = orjson.loads(data)
        if "turn" in message:
            self._turn = message["turn"]
            self._g.oracle.gets(self._log, self._turn, message["inputs"], self.memory, steered=False)
        elif "steer" in message:
            self._g.oracle.gets(self._log, self._turn, [message["steer"]], self.memory, steered=True)
        self._w.note("", "HARNESS GETS", message)
        self._stdin.append(message)
        self._changed.notify_all()

    def wait(self, _: float) -> int | None:
        self._check()
        return self.returncode

    @property
    def now(self) -> float:
        return self._w.now

    def set_deadline(self, at: float | None) -> None:
        self._check()
        assert at is not None
        self.deadline = at

    def kill(self) -> None:
        """Dead when it returns."""
        if self.returncode is None:
            self.returncode = -9
            self._own.kill()
            self.heard.notify_all()

    def _check(self) -> None:
        """The guardian looks at its clock."""
        if self._w.now >= self.deadline:
            self.kill()

    def _run(self) -> None:
        try:
            while self._listen(None):
                message = self._stdin.popleft()
                if "turn" in message:
                    self.memory.extend(message["inputs"])
                    self._play(message["turn"])
        except _Exit:
            pass
        if self.returncode is None:
            self.returncode = 3
        self.heard.notify_all()

    def _listen(self, seconds: float | None) -> bool:
        """Waits until it is told something, `seconds` have passed, or its deadline is over."""
        w = self._w
        until = None if seconds is None else w.now + seconds
        while not self._stdin:
            self._check()
            if self.returncode is not None:
                raise _Exit
            ends = self.deadline if until is None else min(self.deadline, until)
            if until is not None and w.now >= until:
                return False
            self._changed.wait(max(0.0, ends - w.now))
        return True

    def _say(self, *outputs: Output) -> None:
        self.said.extend(outputs)
        self.heard.notify_all()

    def _play(self, turn: str) -> None:
        w, rng = self._w, self._w.rng
        ends = w.profile.ends if w.faulty else {"done": 1}
        end = rng.choices(list(ends), list(ends.values()))[0]
        for i in range(rng.randint(0, w.profile.outputs)):
            if self._told(rng.random() * 2 * w.profile.pace):
                return
            call = f"{turn[-4:]}.{i}"
            kind = rng.random()
            if kind < 0.6:
                self._say(Message(f"{self._g.worker} says {call}"))
            elif kind < 0.8:
                self._say(ToolCall(call, "shell", {}))
            else:
                self._say(ToolCall(call, "shell", {}), ToolResult(call, RESULT))
        if end == "hang":
            # deaf, also to interrupts; until it is killed
            while True:
                self._stdin.clear()
                self._listen(60.0)
        if self._told(rng.random() * 2 * w.profile.pace):
            return
        if end == "exit":
            raise _Exit
        self._say(
            {"done": Done({"tokens": 1}), "failed": Failed("error", "no"), "limited": RateLimited(rng.random() * 5, "later")}[
                end
            ]
        )

    def _told(self, seconds: float) -> bool:
        """Goes on with its work; True if it was interrupted."""
        while self._listen(seconds):
            message = self._stdin.popleft()
            if "interrupt" in message:
                self._say(Interrupted())
                return True
            if "steer" in message:
                self.memory.append(message["steer"])
                self._say(Steered(message["steer"]))
            seconds = 0.001
        return False


class _Exit(Exception):
    """The harness ends."""


class SimHost:
    """What `workers.host.Host` is to a runner."""

    def __init__(self, child: SimChild, adapter: SimAdapter, place: Place, mailbox: Mailbox, guardian: SimGuardian) -> None:
        self.child, self.adapter, self.place = child, adapter, place
        self._mailbox, self._guardian, self._source = mailbox, guardian, mailbox.fresh()
        self.stderr = ""
        self.heard = guardian.world.now
        guardian.process.spawn(self._read, "reader")

    @classmethod
    def start(
        cls,
        guardian: SimGuardian,
        adapter: SimAdapter,
        place: Place,
        deadline: float,
        mailbox: Mailbox,
        *_: object,
    ) -> SimHost:
        w = guardian.world
        w.scheduler.sleep(w.rng.random() * 0.02)
        log = place.home.name
        child = SimChild(guardian, log, guardian.disk[log], deadline)
        return cls(child, adapter, place, mailbox, guardian)

    def stop(self) -> None:
        if not self._guardian.process.alive:
            raise Killed
        self._guardian.world.scheduler.sleep(self._guardian.world.rng.random() * 0.01)
        self.child.kill()

    def _read(self) -> None:
        child = self.child
        while child.said or child.returncode is None:
            child.heard.wait_for(lambda: child.said or child.returncode is not None)
            outputs = list(child.said)
            child.said.clear()
            if outputs:
                self.heard = child.now
                self._mailbox.put(outputs, self._source)
        self._mailbox.ended(self._source)


class SimWorkspaces:
    """What `workers.workspace.Workspaces` is to a runner: a checkpoint is one object with the harness's memory."""

    def __init__(self, guardian: SimGuardian, store: Store, world: World) -> None:
        self._guardian, self._store, self._w = guardian, store, world
        self._pace = world.pace()
        self._owners: dict[str, str] = {}

    def materialise(self, name: LogName, latest: Checkpoint | None, owner: str) -> Place:
        memory: list[str] = []
        if latest:
            assert name.session
            key = keys.checkpoint(name.tenant, name.session, latest.id)
            try:
                memory = orjson.loads(heads.fetch(self._store, key, self._pace))["memory"]
            except Absent:
                self._w.violate("the checkpoint that the log names is not in the store")
                raise Missing("no such checkpoint") from None
        self._guardian.oracle.remembers(name.text, memory, latest.id if latest else None)
        self._guardian.disk[name.text] = list(memory)
        self._owners[name.text] = owner
        return Place(home=Path("/home") / name.text, cwd=Path("/work"), session_id=name.session or "", fresh=latest is None)

    def save(self, name: LogName, host: SimHost, meta: dict[str, Any], owner: str) -> str:
        assert name.session
        if self._owners.get(name.text) != owner:
            raise Fenced("the session's directories are another lease's")
        ckpt = "c" + self._w.token()
        body = orjson.dumps({"id": ckpt, "meta": meta, "memory": self._guardian.disk[name.text]})
        for _ in range(4):
            try:
                self._store.put(keys.checkpoint(name.tenant, name.session, ckpt), body)
                return ckpt
            except StoreError:
                self._w.scheduler.sleep(0.2)
        raise Unavailable("the checkpoint could not be saved")

    def remove(self, name: LogName, owner: str) -> None:
        if self._owners.get(name.text) == owner:
            del self._owners[name.text]
            self._guardian.disk.pop(name.text, None)
