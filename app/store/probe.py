"""The proof, at start, that the store enforces conditions: everything that is promised hangs on them.

Some S3-compatible stores, and old versions of others, accept `If-None-Match` and `If-Match` and ignore them. On those two
writers would both win, so a process that can't prove the conditions doesn't start.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

from app.core.errors import Unavailable
from app.store.contract import PreconditionFailed, Store, StoreError
from app.store.puts import REAL, Pace, put_once

FOLDER = "probe"


def probe(store: Store, *, deadline_seconds: float = 10, pace: Pace = REAL) -> None:
    """Create, refused create, update, refused stale update, on an object of its own, which it removes.

    Raises Unavailable, with one line that says what the store does not do and what to do about it.
    """
    key = f"{FOLDER}/{secrets.token_hex(16)}"

    def put(body: bytes, if_match: str | None = None) -> str:
        return put_once(
            store, key, body, if_none_match=if_match is None, if_match=if_match, deadline_seconds=deadline_seconds, pace=pace
        )

    try:
        first = _allowed("a create of a new object", lambda: put(b"1"))
        _refused("If-None-Match: * (create only)", lambda: put(b"2"))
        second = _allowed("an update with the right etag", lambda: put(b"3", first))
        _refused("If-Match (update only what was read)", lambda: put(b"4", first))
        got = store.get(key)
        if got.body != b"3" or got.etag != second:
            raise Unavailable("the object store does not give back what was written to it: use another store")
    except StoreError as error:
        raise Unavailable(f"the object store failed while it was tried out: {error}") from error
    finally:
        with suppress(StoreError):
            store.delete(key)


def _allowed(what: str, write: Callable[[], str]) -> str:
    try:
        return write()
    except PreconditionFailed:
        raise Unavailable(f"the object store refused {what}: use one with the conditional writes of S3") from None


def _refused(condition: str, write: Callable[[], str]) -> None:
    try:
        write()
    except PreconditionFailed:
        return
    raise Unavailable(
        f"the object store ignores {condition}, so two writers could both win: "
        "use one that enforces it (Amazon S3, MinIO, Ceph or R2 of a recent version) or a directory"
    )
