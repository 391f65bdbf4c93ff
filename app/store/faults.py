"""A store that fails on purpose, in the ways that real ones do: wraps any `Store`, for tests and simulations.

Which call fails how is decided by `script` (one entry a call, None for no fault) and, once that has ended, by `rates` and a
seeded `rng`, so that a seed replays a run exactly. A fault that makes no sense for an operation (a 409 for a read) is skipped.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from app.store.contract import Got, Head, Keys, PreconditionFailed, Raced, Store, StoreError

T = TypeVar("T")


class Fault(enum.Enum):
    """One way to fail. See `Faulty` for what each does."""

    LOST_ANSWER = "done, but the answer is lost"
    LOST_REQUEST = "not done, and the caller can't know"
    LATE = "not done now, and the caller can't know; lands later"
    RACED = "409: nothing landed"
    ERROR_BODY = "200 with an error in the body: not done"
    SLOW_DOWN = "503 SlowDown: not done"
    REFUSED = "no access, for good"


WRITES_ONLY = {Fault.LATE, Fault.RACED, Fault.LOST_ANSWER}


class Faulty:
    """`inner`, with faults. `land()` lets late writes happen, `counts` says how often each fault was played."""

    def __init__(
        self,
        inner: Store,
        *,
        script: Iterable[Fault | None] = (),
        rates: Mapping[Fault, float] | None = None,
        rng: random.Random | None = None,
        late_after: int = 3,
    ) -> None:
        self._inner = inner
        self._script = iter(script)
        self._rates = dict(rates or {})
        self._rng = rng or random.Random(0)  # noqa: S311 - must be repeatable
        self._late_after = late_after
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._calls = 0
        self.counts: Counter[Fault] = Counter()

    def get(self, key: str) -> Got:
        return self._read(lambda: self._inner.get(key))

    def head(self, key: str) -> Head:
        return self._read(lambda: self._inner.head(key))

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        return self._write(
            key, lambda: self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, put_id=put_id)
        )

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        return self._read(lambda: self._inner.list(prefix, start_after=start_after, limit=limit))

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        return self._read(lambda: self._inner.list_dirs(prefix, start_after=start_after, limit=limit))

    def delete(self, key: str) -> None:
        self._write(key, lambda: self._inner.delete(key))

    def get_file(self, key: str, path: Path) -> str:
        return self._read(lambda: self._inner.get_file(key, path))

    def put_file(self, key: str, path: Path) -> str:
        return self._write(key, lambda: self._inner.put_file(key, path))

    def close(self) -> None:
        self._inner.close()

    def land(self) -> int:
        """Let every late write happen now; gives how many there were."""
        late, self._late = self._late, []
        for _, write in late:
            _happen(write)
        return len(late)

    def _read(self, call: Callable[[], T]) -> T:
        fault = self._next()
        if fault is None or fault in WRITES_ONLY:
            return call()
        self.counts[fault] += 1
        raise _error(fault)

    def _write(self, key: str, call: Callable[[], T]) -> T:
        fault = self._next()
        if fault is None:
            return call()
        self.counts[fault] += 1
        if fault is Fault.RACED:
            raise Raced(key)
        if fault is Fault.LOST_ANSWER:
            _happen(call)
        if fault is Fault.LATE:
            self._late.append((self._calls + self._late_after, call))
        raise _error(fault)

    def _next(self) -> Fault | None:
        """Counts the call, lets those late writes happen whose time has come, and says how this call shall fail."""
        self._calls += 1
        due = [write for at, write in self._late if at <= self._calls]
        self._late = [(at, write) for at, write in self._late if at > self._calls]
        for write in due:
            _happen(write)
        scripted = next(self._script, None)
        if scripted is not None or not self._rates:
            return scripted
        at = self._rng.random()
        for fault, rate in self._rates.items():
            at -= rate
            if at < 0:
                return fault
        return None


def _happen(write: Callable[[], object]) -> None:
    """A write whose outcome nobody hears of."""
    try:
        write()
    except (PreconditionFailed, Raced, StoreError):
        return


def _error(fault: Fault) -> StoreError:
    done_for = fault is Fault.REFUSED
    return StoreError(fault.value, unknown=fault not in (Fault.SLOW_DOWN, Fault.REFUSED), lasting=done_for)
