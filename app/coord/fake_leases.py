"""The scripts of queues and leases, without a Redis: who may run which session, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.coord.coord import Answer, Caps, Claimed, Forgotten, Holder
from app.coord.fake_memory import LogKeys
from app.coord.fake_server import FakeServer, holder_of

LIMIT = 64
"""How many members of a sorted set one script looks at."""
LATER_MS = 60_000
"""When a log whose tail isn't archived comes up again to be forgotten (forget.lua)."""


def _ranked(scores: Mapping[str, int], upto: int) -> list[tuple[str, int]]:
    """The first members of a sorted set whose score is at most `upto`."""
    rows = sorted((score, name) for name, score in scores.items() if score <= upto)
    return [(name, score) for score, name in rows[:LIMIT]]


class FakeLeases(FakeServer):
    """Claims, leases, slots and the idle."""

    def claim(self, worker: str, lease_ms: int, affinity_ms: int, vendors: Sequence[str], caps: Caps) -> Claimed | None:
        """As claim.lua."""
        m, now, inc = self.memory, self._now(), self.incarnation()
        found: list[tuple[int, str, str]] = []
        for vendor in vendors:
            if self._free_slots(vendor, caps) > 0:
                found += [(at, log, vendor) for log, at in _ranked(m.queue.get(vendor, {}), now)]
        retry: int | None = None
        for at, log, vendor in sorted(found):
            v = m.logs.get(log)
            if v is None or v.inc != inc or v.status != "queued":
                m.queue[vendor].pop(log, None)
            elif not v.worker:
                wait = at + affinity_ms - now
                if v.last and v.last != worker and wait > 0:
                    retry = wait if retry is None else min(retry, wait)
                    continue
                self._lease(log, v, worker, "0", now + lease_ms)
                m.run.setdefault(vendor, {})[log] = now
                m.queue[vendor].pop(log, None)
                return Claimed(log, vendor, v.gen, "queued")
        return None if retry is None else Claimed(retry_ms=retry)

    def activate(self, log: str, holder: Holder, lease_ms: int) -> Answer:
        """As activate.lua."""
        v = self._open(log)
        if v is None:
            return Answer.COLD
        if v.worker != holder.worker or v.epoch not in ("0", str(holder.epoch)):
            return Answer.FENCED
        self._lease(log, v, holder.worker, str(holder.epoch), self._now() + lease_ms)
        return Answer.OK

    def begin(self, log: str, holder: Holder, caps: Caps) -> Answer:
        """As begin.lua."""
        v, m, now = self._held(log, *holder_of(holder)), self.memory, self._now()
        if isinstance(v, Answer):
            return v
        if log in m.run.get(v.vendor, {}):
            return Answer.OK
        queue = m.queue.get(v.vendor, {})
        if log not in queue or queue[log] > now:
            return Answer.FULL
        rank = sum((at, name) < (queue[log], log) for name, at in queue.items())
        if self._free_slots(v.vendor, caps) <= rank:
            return Answer.FULL
        m.run.setdefault(v.vendor, {})[log] = now
        del queue[log]
        return Answer.OK

    def enter(self, group: str, log: str) -> bool:
        """As enter.lua."""
        other = self.memory.groups.get(group, log)
        v = self._open(other) if other != log else None
        if v and v.worker and (v.deadline or 0) > self._now():
            self._publish(self.channel(other), b"G")
            return False
        self.memory.groups[group] = log
        return True

    def renew(self, worker: str, lease_ms: int, held: Sequence[tuple[str, int]]) -> list[Answer]:
        """As renew.lua."""
        out: list[Answer] = []
        for log, epoch in held:
            v = self._held(log, worker, epoch)
            if isinstance(v, LogKeys):
                self._lease(log, v, worker, v.epoch, self._now() + lease_ms)
                v = Answer.OK
            out.append(v)
        return out

    def release(self, log: str, holder: Holder, force: bool = False) -> Answer:
        """As release.lua."""
        v = self._held(log, *holder_of(holder))
        if isinstance(v, Answer):
            return v
        if v.status == "running":
            return Answer.OPEN
        if v.status == "queued" and not force and self.memory.queue.get(v.vendor, {}).get(log, 0) <= self._now():
            return Answer.WORK
        v.worker, v.last = "", holder.worker
        self.memory.leases.pop(log, None)
        self._place(log, v.status, v.vendor, 0)
        return Answer.OK

    def takeover(self, worker: str, lease_ms: int) -> Claimed | None:
        """As takeover.lua."""
        now, inc = self._now(), self.incarnation()
        for log, _ in _ranked(self.memory.leases, now):
            v = self.memory.logs.get(log)
            if v is None or v.inc != inc:
                self.memory.leases.pop(log)
                continue
            self._lease(log, v, worker, "0", now + lease_ms)
            return Claimed(log, v.vendor, v.gen, v.status)
        return None

    def revoke(self, log: str, grace_ms: int) -> Answer:
        """As revoke.lua."""
        v = self._open(log)
        if v is None:
            return Answer.COLD
        self._lease(log, v, "", "", self._now() + grace_ms)
        self._publish(self.channel(log), b"R")
        return Answer.OK

    def shelve(self, log: str, worker: str, ms: int) -> Answer:
        """As shelve.lua."""
        v = self._open(log)
        if v is None:
            return Answer.COLD
        if (v.worker, v.epoch) != (worker, "0"):
            return Answer.FENCED
        self._lease(log, v, "", "", self._now() + ms)
        self.memory.run.get(v.vendor, {}).pop(log, None)
        self.memory.queue.get(v.vendor, {}).pop(log, None)
        return Answer.OK

    def forget(self, idle_ms: int) -> Forgotten | None:
        """As forget.lua."""
        now, inc = self._now(), self.incarnation()
        for log, _ in _ranked(self.memory.idle, now - idle_ms):
            del self.memory.idle[log]
            v = self.memory.logs.get(log)
            if v and not v.worker and v.status not in ("running", "queued"):
                if v.arch != v.next and v.inc == inc:
                    self.memory.idle[log] = now - idle_ms + LATER_MS
                    return Forgotten(log, True)
                del self.memory.logs[log]
                self.memory.leases.pop(log, None)
                return Forgotten(log, False)
        return None
