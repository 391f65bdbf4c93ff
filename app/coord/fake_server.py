"""The server of the stand-in for Redis: its memory, its lives, and what every script begins with (prelude.lua)."""

from __future__ import annotations

from collections.abc import Callable

from app.coord.coord import Answer, Caps, Holder
from app.coord.fake_memory import LogKeys, Memory


class FakeServer:
    """`now_ms` is the server's clock; `published(channel, body)` hears what is published; `name` tells servers apart."""

    def __init__(
        self, now_ms: Callable[[], int], published: Callable[[str, bytes], None] = lambda _, __: None, name: str = "a"
    ) -> None:
        self._now, self._publish, self._name = now_ms, published, name
        self._lives = 1
        self._boots = 0
        self.memory = Memory()

    # What may happen to a server

    def flush(self) -> None:
        """Loses everything, as FLUSHALL does: the boot key goes with it."""
        self.memory = Memory()

    def restart(self) -> None:
        """A new process that has read its whole append-only file."""
        self._lives += 1

    def snapshot(self) -> Memory:
        """What `rollback` can bring back."""
        return self.memory.copy()

    def rollback(self, snapshot: Memory) -> None:
        """A new process (or a replica that took over) that has only what was there at the time of `snapshot`."""
        self._lives += 1
        self.memory = snapshot.copy()

    # The prelude

    def channel(self, log: str) -> str:
        """The channel of a log."""
        return f"ch:{log}"

    @property
    def wake_channel(self) -> str:
        """The channel on which workers are woken."""
        return "wake"

    def incarnation(self) -> str:
        """Run id and boot key."""
        if not self.memory.boot:
            self._boots += 1
            self.memory.boot = f"{self._name}{self._boots}"
        return f"{self._name}{self._lives}.{self.memory.boot}"

    def clock(self) -> int:
        """As clock.lua."""
        return self._now()

    def _open(self, log: str) -> LogKeys | None:
        found = self.memory.logs.get(log)
        return found if found and found.inc == self.incarnation() else None

    def _held(self, log: str, worker: str, epoch: object) -> LogKeys | Answer:
        found = self._open(log)
        if found is None:
            return Answer.COLD
        return found if (found.worker, found.epoch) == (worker, str(epoch)) else Answer.FENCED

    def _place(self, log: str, status: str, vendor: str, not_before: int) -> None:
        m = self.memory
        if not vendor:
            return
        if status != "running":
            m.run.get(vendor, {}).pop(log, None)
        if status == "queued":
            m.vendors.add(vendor)
            m.queue.setdefault(vendor, {}).setdefault(log, max(self._now(), not_before))
            m.idle.pop(log, None)
            self._publish(self.wake_channel, b"queued")
        else:
            m.queue.get(vendor, {}).pop(log, None)
            if status != "running":
                m.idle[log] = self._now()

    def _free_slots(self, vendor: str, caps: Caps) -> int:
        total = sum(len(self.memory.run.get(each, {})) for each in self.memory.vendors)
        cap = caps.per_vendor.get(vendor, caps.default)
        return min(caps.total - total, cap - len(self.memory.run.get(vendor, {})))

    def _lease(self, log: str, found: LogKeys, worker: str, epoch: str, deadline: int) -> None:
        found.worker, found.epoch, found.deadline = worker, epoch, deadline
        self.memory.leases[log] = deadline


def holder_of(holder: Holder) -> tuple[str, int]:
    """Its parts."""
    return holder.worker, holder.epoch
