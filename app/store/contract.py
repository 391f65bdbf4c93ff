"""The object store: what every implementation promises, and nothing of how.

Rules that hold for all of them, and that the one suite (`tests/store/test_contract.py`) proves for each:
- a key is checked by `check_key`; a body is whole or not there, never torn;
- `put` with `if_none_match` creates or raises `PreconditionFailed`; with `if_match` it replaces exactly that version or raises
  it. Of any number of writers that race on one condition one wins, across threads and processes;
- a `put` that has answered is durable, and what a reader has seen stays, also over a loss of power;
- an etag is opaque. It says which *body* is there and no more: a body that returns brings its etag back, as in S3;
- listings are in ascending order of the bytes of the full key, as in S3.

A conditional write goes through `puts.put_once`, which knows what to make of an answer that got lost.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Protocol

MAX_KEY_BYTES = 1024  # Amazon S3 user guide, "Naming Amazon S3 objects"
MAX_PART_BYTES = 255  # NAME_MAX of the file systems that the directory store lives on

_PART = re.compile(r"[A-Za-z0-9_~%@+=,-][A-Za-z0-9._~%@+=,-]*\Z")

Keys = list[str]


class Got(NamedTuple):
    """An object that was read: its whole body and its etag."""

    body: bytes
    etag: str


class Head(NamedTuple):
    """What is known of an object without its body. `size` in bytes; `put_id` of the put that made it, None if not known."""

    etag: str
    size: int
    put_id: str | None


class Absent(Exception):
    """There is no such key at this moment. A late write may still bring it: never conclude more from it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no object at {key}")
        self.key = key


class PreconditionFailed(Exception):
    """The condition of a `put` is settled false (HTTP 412). This very request changed nothing; an earlier one may have."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the condition on {key} does not hold")
        self.key = key


class Raced(Exception):
    """Two writes met (HTTP 409). Nothing of ours landed: send the same bytes again."""

    def __init__(self, key: str) -> None:
        super().__init__(f"another write to {key} was under way")
        self.key = key


class StoreError(Exception):
    """The store failed, or its answer did not come.

    `unknown`: the write may have happened, or may still happen later. `lasting`: repeating can't help (no access, no bucket).
    """

    def __init__(self, message: str, *, unknown: bool = True, lasting: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.lasting = lasting


class Store(Protocol):
    """Objects by key. Every method may raise `StoreError`; bad keys are a `ValueError` (a bug of ours)."""

    def get(self, key: str) -> Got:
        """The whole object. Raises Absent."""
        ...

    def head(self, key: str) -> Head:
        """Etag, size and put-id. Raises Absent."""
        ...

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        """Write `body`, durable on return, and give its etag; under one condition or none.

        Raises PreconditionFailed, Raced.
        """
        ...

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        """Up to `limit` full keys that begin with `prefix` and are greater than `start_after`, ascending."""
        ...

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        """Names of the immediate children of `prefix` ("" or ending in "/") that have objects below them.

        In the order of the bytes of `name + "/"`; only those after `start_after` (a name) in that order. Without the "/".
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        ...

    def get_file(self, key: str, path: Path) -> str:
        """Stream the object into a new file at `path` (replaced atomically) and give its etag. Raises Absent."""
        ...

    def put_file(self, key: str, path: Path) -> str:
        """Stream the file at `path` into the object, unconditionally, and give its etag."""
        ...

    def close(self) -> None:
        """Let go of connections; the store isn't used afterwards."""
        ...


def is_part(name: str) -> bool:
    """Whether `name` can stand between the slashes of a key."""
    return len(name) <= MAX_PART_BYTES and bool(_PART.match(name))


def check_key(key: str) -> str:
    """`key`, if it is well formed: parts of letters, digits and `._~%@+=,-` joined by "/", none of them starting with a dot.

    Raises ValueError. So no key can be absolute, hold "..", or meet the directory store's own `.meta`.
    """
    if len(key) > MAX_KEY_BYTES or not all(map(is_part, key.split("/"))):
        raise ValueError(f"not a key of the object store: {key[:200]!r}")
    return key


def check_prefix(prefix: str) -> str:
    """`prefix`, if some key can begin with it. Raises ValueError."""
    if prefix:
        check_key(prefix[:-1] if prefix.endswith("/") else prefix)
    return prefix


def check_folder(prefix: str) -> str:
    """`prefix`, if it is "" or a prefix that ends in "/". Raises ValueError."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"a folder's prefix ends in a slash: {prefix[:200]!r}")
    return check_prefix(prefix)


def check_condition(if_none_match: bool, if_match: str | None) -> None:
    """Raises ValueError if both conditions are given, or an empty etag."""
    if if_match is not None and (if_none_match or not if_match):
        raise ValueError("a put takes if_none_match or a non-empty if_match, not both")
