"""`Coord` in this process's memory, for simulations and tests: the Lua scripts, line by line, without a Redis.

Rules: it answers as the scripts do, also where they are odd; `tests/coord/test_differential.py` holds both against each other. It
never waits and never fails by itself. Its clock is an argument. `flush`, `restart` and `rollback` lose what a real server may lose,
and change the incarnation as it would.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.coord.coord import Answer, Appended, Holder, Key, Look, Seed, StateChange, Tail
from app.coord.fake_leases import FakeLeases
from app.coord.fake_memory import LogKeys
from app.coord.fake_server import holder_of

IDS_MS = 60_000
"""After how long the table of event ids is put aside (append.lua)."""
WINDOW = 64
"""Entries that stay in the tail below the archived head (archived.lua)."""
_PLACEHOLDER = re.compile(rb'"@(\d+)"')


class FakeCoord(FakeLeases):
    """The whole: the scripts of logs are here."""

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
            # one more input for a turn that is about to begin: its slot stays taken
            reserved = change.status == found.status == "queued" and log in self.memory.run.get(found.vendor, {})
            found.state = _PLACEHOLDER.sub(lambda m: b"%d" % (first + int(m[1])), change.state)
            found.status = change.status
            if not reserved:
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

    def heads(self, logs: Sequence[str]) -> list[tuple[int, int] | None]:
        """As heads.lua."""
        found = map(self._open, logs)
        return [(v.gen, v.next) if v else None for v in found]

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
