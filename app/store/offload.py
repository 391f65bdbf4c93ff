"""A store whose slow calls don't stop a gevent hub.

Flushing a file to disk is a system call that gevent can't make cooperative: for its time, milliseconds or on a busy disk a good part
of a second, no other greenlet of the process would run. So writes, listings and whole files go through a small pool of real
threads; reads of single objects stay, for they don't wait and the way to a thread takes longer than they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from app.store.contract import Got, Head, Keys, Store

T = TypeVar("T")


def hub_runs_here() -> bool:
    """Whether this process is patched by gevent."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("time"))


class Offloaded:
    """`inner`, with its slow calls in at most `threads` threads, which `close` ends. Only for the greenlets of one hub."""

    def __init__(self, inner: Store, threads: int = 8) -> None:
        self._inner = inner
        self._threads = threads
        self._pool: Any = None  # made at the first call: a pool doesn't survive a fork

    def get(self, key: str) -> Got:
        return self._inner.get(key)

    def head(self, key: str) -> Head:
        return self._inner.head(key)

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        return self._away(lambda: self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, put_id=put_id))

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        return self._away(lambda: self._inner.list(prefix, start_after=start_after, limit=limit))

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        return self._away(lambda: self._inner.list_dirs(prefix, start_after=start_after, limit=limit))

    def delete(self, key: str) -> None:
        self._away(lambda: self._inner.delete(key))

    def get_file(self, key: str, path: Path) -> str:
        return self._away(lambda: self._inner.get_file(key, path))

    def put_file(self, key: str, path: Path) -> str:
        return self._away(lambda: self._inner.put_file(key, path))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.kill()
        self._inner.close()

    def _away(self, call: Callable[[], T]) -> T:
        if self._pool is None:
            from gevent.threadpool import ThreadPool

            self._pool = ThreadPool(self._threads)
        outcome: tuple[T | None, Exception | None] = self._pool.apply(_outcome, (call,))
        if outcome[1] is not None:
            raise outcome[1]
        return cast("T", outcome[0])


def _outcome(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Result or error; an error that got out of a thread of gevent's would be printed as if nobody expected it."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - raised again by who asked
        return None, error
