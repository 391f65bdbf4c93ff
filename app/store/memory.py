"""A store in this process's memory, for simulations and unit tests: deterministic, no I/O, no clock.

It keeps the weaker promises of S3 on purpose (an etag is a hash of the body, so that A -> B -> A brings it back): a simulation
must not pass thanks to a store that is better than the real one.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
from pathlib import Path

from app.store.contract import (
    Absent,
    Got,
    Head,
    Keys,
    PreconditionFailed,
    check_condition,
    check_folder,
    check_key,
    check_prefix,
)


class MemoryStore:
    """A `Store` in a dictionary; safe for threads."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str, str | None]] = {}
        self._sorted: Keys = []
        self._lock = threading.Lock()

    def get(self, key: str) -> Got:
        body, etag, _ = self._found(key)
        return Got(body, etag)

    def head(self, key: str) -> Head:
        body, etag, put_id = self._found(key)
        return Head(etag, len(body), put_id)

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        check_key(key)
        check_condition(if_none_match, if_match)
        etag = hashlib.sha256(body).hexdigest()
        with self._lock:
            old = self._objects.get(key)
            if (if_none_match and old is not None) or (if_match is not None and (old is None or old[1] != if_match)):
                raise PreconditionFailed(key)
            if old is None:
                bisect.insort(self._sorted, key)
            self._objects[key] = (bytes(body), etag, put_id)
        return etag

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        check_prefix(prefix)
        with self._lock:
            at = max(bisect.bisect_left(self._sorted, prefix), bisect.bisect_right(self._sorted, start_after))
            end = self._end(prefix)
            return self._sorted[at : min(end, at + limit)]

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        check_folder(prefix)
        found: Keys = []
        with self._lock:
            at = bisect.bisect_left(self._sorted, f"{prefix}{start_after}0" if start_after else prefix)
            end = self._end(prefix)
            while at < end and len(found) < limit:
                name, slash, _ = self._sorted[at][len(prefix) :].partition("/")
                if slash:
                    found.append(name)
                    at = bisect.bisect_left(self._sorted, f"{prefix}{name}0")  # "0" is the character after "/"
                else:
                    at += 1
        return found

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._sorted[bisect.bisect_left(self._sorted, key)]

    def get_file(self, key: str, path: Path) -> str:
        got = self.get(key)
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(got.body)
        partial.replace(path)
        return got.etag

    def put_file(self, key: str, path: Path) -> str:
        return self.put(key, path.read_bytes())

    def close(self) -> None:
        return None

    def _found(self, key: str) -> tuple[bytes, str, str | None]:
        with self._lock:
            found = self._objects.get(check_key(key))
        if found is None:
            raise Absent(key)
        return found

    def _end(self, prefix: str) -> int:
        """Index after the last key that begins with `prefix` (keys are ASCII, so "\\x7f" follows them all)."""
        return bisect.bisect_left(self._sorted, prefix + "\x7f")
