"""A directory as an object store: plain files at the very keys that a bucket would have, so that copying it is a migration.

How the promises of `contract.py` are kept, on a file system that journals its metadata in order (ext4, xfs, btrfs, apfs):
- a body is written to a file in `.meta/tmp`, flushed, and only then gets its name: by link(2), which fails if there is one
  (create), or by rename(2) (replace). So a name only ever shows a whole body, whatever crashes when;
- a lock covers the comparison of an `if_match`, the naming and the flush of the folder;
- what a reader has seen is durable: one that meets no writer at the lock reads what is flushed, one that meets a writer
  flushes the folder itself. So a reader never waits;
- the put-id is an extended attribute of the file, there before the file has its name. Where the file system has none, this
  store object remembers it, for the process that asks is the one that has put;
- the etag is the SHA-256 of the body, computed when asked for: nothing beside the body can get out of step with it.

A process that is stopped (SIGSTOP) in the millisecond in which it holds a lock makes others fail, not err: creates go on
without the lock, for link(2) decides anyway; the rest raises StoreError after `LOCK_SECONDS`. Nothing here yields while it
holds a lock, so that greenlets can't meet inside.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from app.store.contract import (
    Absent,
    Got,
    Head,
    Keys,
    PreconditionFailed,
    StoreError,
    check_condition,
    check_folder,
    check_key,
    check_prefix,
)
from app.store.listing import page, page_of_folders
from app.store.locks import Locks

META = ".meta"
LOCKS = 1024
LOCK_SECONDS = 5.0
CREATE_LOCK_SECONDS = 0.25
STALE_SECONDS = 3600.0  # age of a file in .meta/tmp at which no living writer can still be busy with it
NAMING_TRIES = 20  # a folder may be cleared away as empty just before something is put into it
REMEMBERED_PUTS = 4096
XATTR = "user.byre.put-id"
PIECE = 1 << 20  # bytes copied at a time


class DirectoryStore:
    """A `Store` in `root`, for any number of threads and processes of one machine. `root` is made if need be."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._tmp = self._root / META / "tmp"
        self._puts: OrderedDict[str, tuple[str, str]] = OrderedDict()  # key -> etag, put-id
        self._puts_lock = threading.Lock()
        with _failing(str(root), unknown=False):
            for folder in (self._tmp, self._root / META / "locks"):
                folder.mkdir(parents=True, exist_ok=True)
            _clear_stale(self._tmp)
        self._locks = Locks(self._root / META / "locks", LOCKS)

    def get(self, key: str) -> Got:
        with _failing(key, unknown=False), self._opened(key) as file:
            body = file.read()
        return Got(body, hashlib.sha256(body).hexdigest())

    def head(self, key: str) -> Head:
        with _failing(key, unknown=False), self._opened(key) as file:
            etag, size = _copy(file, None)
            return Head(etag, size, self._put_id(key, etag, file))

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        check_condition(if_none_match, if_match)
        path = self._path(key)
        etag = hashlib.sha256(body).hexdigest()
        with _failing(key, unknown=False):
            if if_none_match or if_match is not None:
                self._refuse_early(key, if_match)
            with self._temporary() as (tmp, file):
                _write(file, body)
                marked = put_id is None or _mark(file, put_id)
                os.fsync(file.fileno())
                self._name(tmp, path, key, if_none_match, if_match)
            if put_id is not None and not marked:
                self._remember(key, etag, put_id)
        return etag

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        with _failing(prefix, unknown=False):
            return page(self._root, check_prefix(prefix), start_after, limit)

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        with _failing(prefix, unknown=False):
            return page_of_folders(self._root, check_folder(prefix), start_after, limit)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _failing(key, unknown=True), self._alone(key):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            _flush(path.parent)

    def get_file(self, key: str, path: Path) -> str:
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        with _failing(key, unknown=False):
            try:
                with self._opened(key) as source, partial.open("wb") as target:
                    etag, _ = _copy(source, target)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return etag

    def put_file(self, key: str, path: Path) -> str:
        target = self._path(key)
        with _failing(key, unknown=False), path.open("rb") as source, self._temporary() as (tmp, file):
            etag, _ = _copy(source, file)
            os.fsync(file.fileno())
            self._name(tmp, target, key, False, None)
        return etag

    def close(self) -> None:
        return None

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        """The object's file, once its name is durable. Raises Absent."""
        path = self._path(key)
        with self._locks.shared(key) as settled:
            try:
                file = path.open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise Absent(key) from None
        with file:
            if not settled:
                _flush(path.parent)
            yield file

    @contextmanager
    def _temporary(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file without a place in the store; gone after the block, but for the names that it was given."""
        tmp = self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with tmp.open("xb", buffering=0) as file:
                yield tmp, file
        finally:
            tmp.unlink(missing_ok=True)

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        with self._locks.exclusive(key, LOCK_SECONDS) as held:
            if not held:
                raise StoreError(f"the lock of {key} is held by a process that does not go on", unknown=False)
            yield

    def _refuse_early(self, key: str, if_match: str | None) -> None:
        """Spare a write whose condition is false already."""
        try:
            with self._opened(key) as file:
                if if_match is None or _copy(file, None)[0] != if_match:
                    raise PreconditionFailed(key)
        except Absent:
            if if_match is not None:
                raise PreconditionFailed(key) from None

    def _name(self, tmp: Path, path: Path, key: str, create: bool, if_match: str | None) -> None:
        """Give the flushed file `tmp` its name in the store, under the condition."""
        if create:
            with self._locks.exclusive(key, CREATE_LOCK_SECONDS):
                try:
                    _settle(path, lambda: path.hardlink_to(tmp))
                except FileExistsError:
                    if path.is_dir():
                        raise StoreError(f"{key} is a folder", unknown=False, lasting=True) from None
                    _flush(path.parent)
                    raise PreconditionFailed(key) from None
            return
        with self._alone(key):
            if if_match is not None and _etag(path) != if_match:
                raise PreconditionFailed(key)
            _settle(path, lambda: tmp.replace(path))

    def _remember(self, key: str, etag: str, put_id: str) -> None:
        with self._puts_lock:
            self._puts[key] = (etag, put_id)
            while len(self._puts) > REMEMBERED_PUTS:
                self._puts.popitem(last=False)

    def _put_id(self, key: str, etag: str, file: BinaryIO) -> str | None:
        with suppress(AttributeError, OSError):
            return os.getxattr(file.fileno(), XATTR).decode()
        with self._puts_lock:
            known = self._puts.get(key)
        return known[1] if known and known[0] == etag else None


def _write(file: BinaryIO, body: bytes) -> None:
    """All of `body`: an unbuffered file may take less than it is given."""
    rest = memoryview(body)
    while rest:
        rest = rest[file.write(rest) :]


def _mark(file: BinaryIO, put_id: str) -> bool:
    """Write the put-id beside the body. False if this system or file system has no place for it."""
    try:
        os.setxattr(file.fileno(), XATTR, put_id.encode())
    except (AttributeError, OSError):
        return False
    return True


def _settle(path: Path, naming: Callable[[], object]) -> None:
    """Give a file its name at `path`, with the folders it needs, durably. Raises what `naming` does, and StoreError.

    Flushing the one folder makes its parents' new entries durable too: they went into the journal before.
    """
    for _ in range(NAMING_TRIES):
        try:
            naming()
            break
        except FileNotFoundError:
            _make_folders(path.parent)
    else:
        raise StoreError(f"the folder of {path.name} does not stay", unknown=False)
    with _failing(path.name, unknown=True):
        _flush(path.parent)


def _make_folders(folder: Path) -> None:
    with suppress(FileExistsError, FileNotFoundError):  # a file in its place, or cleared away meanwhile: naming will tell
        folder.mkdir(parents=True, exist_ok=True)


def _flush(folder: Path) -> None:
    """Make the names in `folder` durable. A folder that has gone holds none."""
    with suppress(FileNotFoundError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _etag(path: Path) -> str | None:
    try:
        with path.open("rb", buffering=0) as file:
            return _copy(file, None)[0]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _copy(source: BinaryIO, target: BinaryIO | None) -> tuple[str, int]:
    """Read `source` to its end, into `target` if there is one; gives SHA-256 in hex and the number of bytes."""
    digest, size = hashlib.sha256(), 0
    while piece := source.read(PIECE):
        digest.update(piece)
        size += len(piece)
        if target is not None:
            _write(target, piece)
    return digest.hexdigest(), size


def _clear_stale(tmp: Path) -> None:
    """Remove what writers left that were killed."""
    for path in tmp.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()


@contextmanager
def _failing(what: str, *, unknown: bool) -> Iterator[None]:
    """Errors of the file system as StoreError."""
    try:
        yield
    except OSError as error:
        lasting = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)
        raise StoreError(f"{what}: {error.strerror or error}", unknown=unknown, lasting=lasting) from error
