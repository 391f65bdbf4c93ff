"""One command on the real scripts and on the stand-in, and everything that can be seen of both afterwards.

The real scripts run with a clock of ours: the prelude's `now_ms` is replaced in the text that is loaded here, and only here, by one
that reads a key. So times, and the order of what was queued in one millisecond, can be compared exactly.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

import redis

from app.coord.coord import RedisCoord
from app.coord.fake import FakeCoord
from app.coord.fake_memory import LogKeys, Memory
from app.coord.scripts import Scripts

PREFIX = "mirror"
CLOCK = "test-clock"
_NOW = re.compile(r"local function now_ms\(\)\n.*?\nend\n", re.DOTALL)
START = 1_700_000_000_000


class ClockedScripts(Scripts):
    """The scripts on the clock in the key `CLOCK`."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        clock = f"local function now_ms()\n  return tonumber(redis.call('GET', '{CLOCK}'))\nend\n"
        for name, text in self._source.items():
            replaced, times = _NOW.subn(clock, text)
            assert times == 1
            self._source[name] = replaced
            self._sha[name] = "0" * 39 + "x"  # never known, so the text itself is run

    def run(self, name: str, *args: Any) -> Any:
        return self.client.eval(self._source[name], 1, self.prefix, secrets.token_hex(8), *args)


class Mirror:
    """Both coordinators, in step. `tick` moves the one clock of both."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        client.flushall()
        self.now = START
        client.set(CLOCK, self.now)
        self.real = RedisCoord(ClockedScripts(client, PREFIX))
        self._heard_fake: list[tuple[str, bytes]] = []
        self.fake = FakeCoord(lambda: self.now, lambda channel, body: self._heard_fake.append((channel, body)))
        self._incs: dict[str, str] = {}
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.psubscribe("*")
        self._drain()

    def close(self) -> None:
        self._pubsub.close()

    def both(self, call: Callable[[Any], Any]) -> tuple[Any, Any]:
        """What `call` answers on the real one and on the stand-in."""
        return call(self.real), call(self.fake)

    def tick(self, ms: int) -> None:
        self.now += ms
        self.client.set(CLOCK, self.now)

    def flush(self) -> None:
        self.client.flushall()
        self.client.set(CLOCK, self.now)
        self.fake.flush()

    def restart(self) -> None:
        """The data stays and the incarnation changes. The run id can't be changed without a restart, but the boot key can."""
        self.client.delete(self._key("boot"))
        self.fake.restart()

    def snapshot(self) -> tuple[dict[bytes, bytes], Memory]:
        return {k: self.client.dump(k) for k in self.client.keys("*")}, self.fake.snapshot()

    def rollback(self, snapshot: tuple[dict[bytes, bytes], Memory]) -> None:
        self.client.flushall()
        for key, value in snapshot[0].items():
            self.client.restore(key, 0, value)
        self.client.set(CLOCK, self.now)
        self.client.delete(self._key("boot"))
        self.fake.rollback(snapshot[1])

    def age_ids(self, log: str) -> None:
        """The table of event ids is old: the next append puts it aside."""
        if log in self.fake.memory.logs:
            self.client.hset(self._key("log", log), "idsat", 0)
            self.fake.memory.logs[log].idsat = 0

    def incarnations(self) -> tuple[str, str]:
        """Of both; a pair that was seen once must stay one."""
        real, fake = self.both(lambda c: c.incarnation())
        assert self._incs.setdefault(real, fake) == fake
        assert list(self._incs.values()).count(fake) == 1
        return real, fake

    def heard(self) -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
        """What both have published since the last time."""
        fake, self._heard_fake = self._heard_fake, []
        return self._drain(), fake

    def _drain(self) -> list[tuple[str, bytes]]:
        self.client.publish("marker", "x")
        out: list[tuple[str, bytes]] = []
        while True:
            message = self._pubsub.get_message(timeout=10)
            if message is None:
                continue
            channel = message["channel"].decode()
            if channel == "marker":
                return out
            out.append((channel.removeprefix("{" + PREFIX + "}:"), message["data"]))

    def visible(self) -> Memory:
        """Everything in the real Redis, in the shape of the stand-in's memory."""
        out = Memory(boot="set" if self.client.exists(self._key("boot")) else "")
        members = self.client.smembers(self._key("vendors"))
        out.vendors = {m.decode() for m in members}
        for vendor in ("v1", "v2"):
            out.queue[vendor] = self._scores("q", vendor)
            out.run[vendor] = self._scores("run", vendor)
        out.leases, out.idle = self._scores("leases"), self._scores("idle")
        place = self._key("group", "")
        for key in self.client.scan_iter(place + "*"):
            out.groups[key.decode().removeprefix(place)] = (self.client.get(key) or b"").decode()
        head = self._key("log", "")
        for key in self.client.scan_iter(head + "*"):
            log = key.decode().removeprefix(head)
            out.logs[log] = self._log(log)
        return out

    def expected(self) -> Memory:
        """The stand-in's memory, with what differs by nature put into the real one's terms."""
        names = {fake: real for real, fake in self._incs.items()}
        out = self.fake.memory.copy()
        out.boot = "set" if out.boot else ""
        for log in out.logs.values():
            log.inc = names.get(log.inc, log.inc)
        for table in (out.queue, out.run):
            for vendor in ("v1", "v2"):
                table.setdefault(vendor, {})
        return out

    def leftovers(self) -> set[str]:
        """Keys of logs that have no head any more."""
        whole = {k.decode() for k in self.client.keys("{" + PREFIX + "}:*")}
        parts = {k for k in whole if re.search(r":(tail|ids|keys):", k)}
        return {k for k in parts if not any(f":{log}" in k for log in self.fake.memory.logs)}

    def _scores(self, *parts: str) -> dict[str, int]:
        return {m.decode(): int(score) for m, score in self.client.zrange(self._key(*parts), 0, -1, withscores=True)}

    def _log(self, log: str) -> LogKeys:
        h = {k.decode(): v for k, v in self.client.hgetall(self._key("log", log)).items()}
        text = {k: v.decode() for k, v in h.items() if k not in ("state", "astate")}
        gen = int(text["gen"])
        tails = {int(k.decode().rpartition(":")[2]) for k in self.client.scan_iter(self._key("tail", log, "*"))}
        assert tails <= {gen}
        ids, older, keys = (self.client.hgetall(self._key(*p)) for p in (("ids", log), ("ids", log, "older"), ("keys", log)))
        return LogKeys(
            inc=text["inc"],
            gen=gen,
            next=int(text["next"]),
            arch=int(text["arch"]),
            ver=int(text["ver"]),
            state=h["state"],
            status=text["status"],
            epoch=text["epoch"],
            worker=text["worker"],
            vendor=text["vendor"],
            astate=h["astate"],
            asha=text["asha"],
            idsat=int(text["idsat"]),
            deadline=int(text["deadline"]) if "deadline" in text else None,
            last=text.get("last"),
            tail={int(i.split(b"-")[0]): f[b"e"] for i, f in self.client.xrange(self._key("tail", log, str(gen)))},
            ids={k.decode(): int(v) for k, v in ids.items()},
            older={k.decode(): int(v) for k, v in older.items()},
            keys={k.decode(): v.decode() for k, v in keys.items()},
        )

    def _key(self, *parts: str) -> str:
        return "{" + PREFIX + "}:" + ":".join(parts)
