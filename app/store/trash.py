"""The trash: where `byre gc` puts what nobody needs, for as long as it may turn out that somebody does.

Rules: an object is copied, then deleted, so it is always in one of both places; its key in the trash says where it was and which run
put it there. For chunks of native state the trash is still a part of the store: a checkpoint that is being saved may rely on a chunk
that was found existing just before it went, so readers look here too (`find`), and before anything is deleted for good, what is
in use again is put back. That makes deleting safe without a lock between savers and `byre gc`: no save lasts as long as the
trash is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from app.core.errors import Unavailable
from app.store import keys
from app.store.contract import Absent, Got, PreconditionFailed, Store, StoreError
from app.store.puts import REAL, Pace, put_once

TRIES = 4
PAGE = 1000
T = TypeVar("T")


class Trash:
    """The trash of every tenant in `store`. Every method may raise Unavailable."""

    def __init__(self, store: Store, pace: Pace = REAL) -> None:
        self._store, self._pace = store, pace

    def get(self, key: str) -> bytes | None:
        """The object at `key` where it belongs, None if there is none."""
        try:
            return patiently(lambda: self._store.get(key), self._pace).body
        except Absent:
            return None

    def discard(self, run: str, key: str, body: bytes) -> None:
        """Moves the object at `key`, which was read as `body`, into the trash."""
        copy = keys.trashed(keys.tenant_of(key), run, key)
        patiently(lambda: self._store.put(copy, body), self._pace)
        self.delete(key)

    def put_back(self, copy: str) -> bool:
        """Moves the object at key `copy` back; what is at its old place by now stays. Whether there was one."""
        key = keys.parse_trashed(copy).key
        body = self.get(copy)
        if body is None:
            return False
        with suppress(PreconditionFailed):
            put_once(self._store, key, body, if_none_match=True, pace=self._pace)
        self.delete(copy)
        return True

    def delete(self, key: str) -> None:
        """Deletes one object, in the trash or not."""
        patiently(lambda: self._store.delete(key), self._pace)

    def size(self, key: str) -> int:
        """Bytes of the object at `key`, 0 if there is none."""
        try:
            return patiently(lambda: self._store.head(key), self._pace).size
        except Absent:
            return 0

    def runs(self, tenant: str) -> list[str]:
        """The runs that have something in the trash of `tenant`, the oldest first (their ids tell their times)."""
        return list(self.folders(keys.trash_prefix(tenant)))

    def content(self, tenant: str, run: str) -> Iterator[str]:
        """Keys in the trash, of one run."""
        return self.under(keys.trash_prefix(tenant, run))

    def under(self, prefix: str, after: str = "") -> Iterator[str]:
        """All keys that begin with `prefix` and follow `after`, ascending."""
        while page := patiently(partial(self._store.list, prefix, start_after=after, limit=PAGE), self._pace):
            yield from page
            after = page[-1]

    def folders(self, prefix: str) -> Iterator[str]:
        """Immediate children of `prefix`."""
        after = ""
        while page := patiently(partial(self._store.list_dirs, prefix, start_after=after, limit=PAGE), self._pace):
            yield from page
            after = page[-1]


def find(store: Store, key: str) -> Got:
    """The object that was at `key`, in the trash. Raises Absent, StoreError."""
    tenant = keys.tenant_of(key)
    for run in reversed(store.list_dirs(keys.trash_prefix(tenant))):
        with suppress(Absent):
            return store.get(keys.trashed(tenant, run, key))
    raise Absent(key)


def patiently(call: Callable[[], T], pace: Pace = REAL) -> T:
    """What `call` gives, with a few tries: for calls that may be repeated. Raises Absent, and Unavailable if the store fails."""
    for attempt in range(TRIES):
        try:
            return call()
        except StoreError as error:
            if attempt == TRIES - 1 or error.lasting:
                raise Unavailable("the object store can't be reached") from error
            pace.sleep(0.05 * 2**attempt * (1 + pace.random()))
    raise AssertionError("unreachable")
