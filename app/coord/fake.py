"""`Coord` in this process's memory, for simulations and tests: the Lua scripts, line by line, without a Redis.

Rules: it answers as the scripts do, also where they are odd; `tests/coord/test_differential.py` holds both against each other. It
never waits and never fails by itself. Its clock is an argument. `flush`, `restart` and `rollback` lose what a real server may lose,
and change the incarnation as it would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from app.coord.coord import Answer, Appended, Caps, Claimed, Holder, Key, Look, Seed, StateChange, Tail
from app.coord.fake_memory import LogKeys, Memory

IDS_MS = 60_000
"""After how long the table of event ids is put aside (append.lua)."""
WINDOW = 64
"""Entries that stay in the tail below the archived head (archived.lua)."""
LIMIT = 64
"""How many members of a sorted set one script looks at."""
_PLACEHOLDER = re.compile(rb'"@(\d+)"')


def _ranked(scores: Mapping[str, int], upto: int) -> list[tuple[str, int]]:
    """The first members of a sorted set whose score is at most `upto`."""
    rows = sorted((score, name) for name, score in scores.items() if score <= upto)
    return [(name, score) for score, name in rows[:LIMIT]]


class FakeCoord:
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

    # The scripts

    def append(
        self,
        log: str,
        events: Sequence[tuple[str, bytes]],
        *,
        holder: Holder | None = None,
        key: Key | None = None,
        change: StateChange | None = None,
    ) -> Appended:
        """As append.lua."""
        found = self._open(log)
        if found is None:
            return Appended(Answer.COLD)
        if holder and holder.worker and (found.worker, found.epoch) != (holder.worker, str(holder.epoch)):
            return Appended(Answer.FENCED)
        first_id = events[0][0]
        seen = found.ids.get(first_id, found.older.get(first_id))
        if seen is not None:
            return Appended(Answer.DUP, found.gen, seen, "", first_id, "")
        if key and key.digest in found.keys:
            gen, offset, event_id, body = found.keys[key.digest].split(" ")
            return Appended(Answer.DUP, int(gen), int(offset), "", event_id, body)
        if change and change.expect and change.expect != found.version:
            return Appended(Answer.STALE)
        first = found.next
        found.tail.update((first + i, event) for i, (_, event) in enumerate(events))
        now = self._now()
        if now - found.idsat > IDS_MS:
            found.ids, found.older, found.idsat = {}, found.ids, now
        found.ids[first_id] = first
        if key:
            found.keys[key.digest] = f"{found.gen} {first} {first_id} {key.body}"
        found.next = first + len(events)
        if change and change.expect:
            found.ver += 1
            found.state = _PLACEHOLDER.sub(lambda m: b"%d" % (first + int(m[1])), change.state)
            found.status = change.status
            self._place(log, change.status, found.vendor, change.not_before)
        self._publish(self.channel(log), b"\n".join([b"E %d %d" % (found.gen, first), *(event for _, event in events)]))
        return Appended(Answer.OK, found.gen, first, found.version)

    def delta(self, log: str, holder: Holder, payload: bytes) -> Answer:
        """As delta.lua."""
        found = self._held(log, *holder_of(holder))
        if isinstance(found, Answer):
            return found
        self._publish(self.channel(log), b"D %d\n%s" % (found.gen, payload))
        return Answer.OK

    def look(self, log: str) -> Look | None:
        """As look.lua."""
        v = self._open(log)
        return Look(v.gen, v.next, v.version, v.state, v.arch, v.worker, v.epoch) if v else None

    def tail(self, log: str, start: int = -1, count: int = 1024) -> Tail | None:
        """As tail.lua."""
        v = self._open(log)
        if v is None:
            return None
        at = v.arch if start < 0 else start
        entries: list[bytes] = []
        while len(entries) < count and at + len(entries) in v.tail:
            entries.append(v.tail[at + len(entries)])
        return Tail(v.gen, v.arch, v.next, v.version, v.state, v.astate, v.asha, at, entries)

    def archived(self, log: str, gen: int, upto: int, astate: bytes, asha: str) -> Answer:
        """As archived.lua."""
        v = self._open(log)
        if v is None:
            return Answer.COLD
        if v.gen != gen or upto > v.next or upto <= v.arch:
            return Answer.OLD
        v.arch, v.astate, v.asha = upto, astate, asha
        if upto > WINDOW:
            v.tail = {offset: event for offset, event in v.tail.items() if offset >= upto - WINDOW}
        return Answer.OK

    def seed(self, log: str, seed: Seed) -> Answer:
        """As seed.lua."""
        inc, m = self.incarnation(), self.memory
        if seed.inc != inc:
            return Answer.WRONG_INC
        old = m.logs.get(log)
        if old and old.inc == inc and old.gen >= seed.gen:
            return Answer.HAVE
        now = self._now()
        m.logs[log] = LogKeys(
            inc=inc,
            gen=seed.gen,
            next=seed.next,
            arch=seed.next,
            ver=0,
            state=seed.state,
            status=seed.status,
            epoch=str(seed.epoch),
            worker="",
            vendor=seed.vendor,
            astate=seed.astate,
            asha=seed.asha,
            idsat=now,
            ids=dict(seed.ids),
            keys=dict(seed.keys),
        )
        if seed.vendor:
            m.queue.get(seed.vendor, {}).pop(log, None)
            m.run.get(seed.vendor, {}).pop(log, None)
        m.leases.pop(log, None)
        self._place(log, seed.status, seed.vendor, seed.not_before)
        if seed.status == "running":
            m.logs[log].deadline = m.leases[log] = now + seed.grace_ms
        return Answer.OK

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

    def forget(self, idle_ms: int) -> str | None:
        """As forget.lua."""
        for log, _ in _ranked(self.memory.idle, self._now() - idle_ms):
            del self.memory.idle[log]
            v = self.memory.logs.get(log)
            if v and v.arch == v.next and not v.worker and v.status not in ("running", "queued"):
                del self.memory.logs[log]
                self.memory.leases.pop(log, None)
                return log
        return None

    def ring(self, tenant: str, item: str) -> None:
        """Nobody is told in a simulation."""


def holder_of(holder: Holder) -> tuple[str, int]:
    """Its parts."""
    return holder.worker, holder.epoch
