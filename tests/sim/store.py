"""The object store as one process sees it: slow, and failing in every way that a real one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.store.contract import Got, Head, Keys, PreconditionFailed, Raced, StoreError
from app.store.faults import Fault
from tests.sim.profile import READ_FAULTS
from tests.sim.scheduler import Process
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.oracle import Oracle

T = TypeVar("T")


class SimStore:
    """A `Store` for `process`; what it writes is shown to the oracle at the moment it happens."""

    def __init__(self, world: World, process: Process, oracle: Oracle) -> None:
        self._w, self._process, self._oracle = world, process, oracle
        self._inner = world.objects

    def get(self, key: str) -> Got:
        return self._read("get", key, lambda: self._inner.get(key))

    def head(self, key: str) -> Head:
        return self._read("head", key, lambda: self._inner.head(key))

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        return self._read("list", prefix, lambda: self._inner.list(prefix, start_after=start_after, limit=limit))

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        return self._read("list", prefix, lambda: self._inner.list_dirs(prefix, start_after=start_after, limit=limit))

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        def write() -> str:
            before = self._oracle.before_put(key, body)
            try:
                etag = self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, put_id=put_id)
            except PreconditionFailed:
                self._w.aims.landed(self._process, key, False)
                raise
            self._oracle.after_put(key, body, before)
            self._w.aims.landed(self._process, key, True)
            return etag

        self._w.aims.entering(self._process, key, body)
        return self._write("put", key, write, if_none_match or if_match is not None)

    def delete(self, key: str) -> None:
        def write() -> None:
            self._oracle.before_delete(key)
            self._inner.delete(key)

        self._write("delete", key, write, False)

    def get_file(self, key: str, path: Path) -> str:
        raise NotImplementedError

    def put_file(self, key: str, path: Path) -> str:
        raise NotImplementedError

    def close(self) -> None:
        return None

    def _read(self, kind: str, key: str, call: Callable[[], T]) -> T:
        self._w.gate(self._process, self._w.profile.store_latency)
        self._maybe_down()
        for fault in READ_FAULTS:
            if self._w.chance(self._w.profile.store_faults.get(fault, 0.0)):
                self._w.note("", f"{kind} {key}", fault.name)
                raise error_of(fault)
        return call()

    def _write(self, kind: str, key: str, call: Callable[[], T], conditional: bool) -> T:
        w = self._w
        w.gate(self._process, w.profile.store_latency)
        self._maybe_down()
        for fault, rate in w.profile.store_faults.items():
            if w.chance(rate) and (conditional or fault is not Fault.RACED):
                w.note("", f"{kind} {key}", fault.name)
                return self._fail(fault, kind, key, call)
        try:
            result = call()
        except PreconditionFailed:
            w.note("", f"{kind} {key}", "412")
            raise
        if w.aims.answer_lost(key):
            w.note("", f"{kind} {key}", Fault.LOST_ANSWER.name)
            raise error_of(Fault.LOST_ANSWER)
        w.note("", f"{kind} {key}", "ok")
        if w.rng.random() < 0.2:
            # the answer is on its way
            w.scheduler.sleep(w.rng.random() * 2 * w.profile.store_latency)
        return result

    def _fail(self, fault: Fault, kind: str, key: str, call: Callable[[], Any]) -> Any:
        w = self._w
        if fault is Fault.RACED:
            raise Raced(key)
        if fault is Fault.LOST_ANSWER:
            happen(call)
        if fault is Fault.LATE:
            delay = w.rng.choice((0.1, 1.0, 8.0, 30.0)) * w.rng.random()

            def land() -> None:
                w.note("", f"{kind} {key}", "lands late")
                happen(call)

            w.later(delay, land, "late")
        raise error_of(fault)

    def _maybe_down(self) -> None:
        if self._w.store_down_until > self._w.now:
            raise error_of(Fault.SLOW_DOWN)


def happen(call: Callable[[], object]) -> None:
    """A write of which nobody hears what became."""
    try:
        call()
    except (PreconditionFailed, Raced):
        return


def error_of(fault: Fault) -> StoreError:
    return StoreError(fault.value, unknown=fault is not Fault.SLOW_DOWN)
