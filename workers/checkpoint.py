"""The native state of a harness, saved in the object store and put back.

A checkpoint is a manifest that names files, and for each file its chunks: pieces of 1 MiB, each an object under the SHA-256 of what
it holds, compressed (zstd) and then encrypted. A file that is only appended to keeps all its chunks but the last, so what a
checkpoint uploads is what has changed.

Rules: chunks are created once and never changed; the manifest comes last, so one that can be read has all its chunks; everything
that is read back is checked, and what fails is refused by its key, never repaired; only plain files inside `within` are read,
whatever links a harness has made; what is restored appears at once or not at all.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import orjson
import structlog
import zstandard

from app.core import ids
from app.core.errors import Corrupt, Missing, Unavailable
from app.store import keys, trash
from app.store.cipher import Cipher, Undecryptable
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import parse_json, put_once

log = structlog.get_logger(__name__)

VERSION = 1
CHUNK_BYTES = 1 << 20
LEVEL = 3  # of zstd; higher ones cost more time than they save on transcripts
AT_ONCE = 4  # chunks in flight, and so in memory

Manifest = dict[str, Any]
A = TypeVar("A")
B = TypeVar("B")


def save(
    store: Store,
    tenant: str,
    session: str,
    files: Sequence[tuple[str, Path]],
    *,
    cipher: Cipher,
    meta: Mapping[str, Any],
    previous: Mapping[str, Any] | None = None,
    within: Path | None = None,
) -> Manifest:
    """Upload `files`, each a (relative name, path), and give the manifest.

    Its fields: `id` (a UUIDv7 as 32 hex characters), `session`, `files` (each `path`, `size` in bytes, `mode`, `chunks`; or
    `path` and `link`), `left_out` (names that are no plain files inside `within`), `bytes` (of all files), `uploaded`
    (bytes of the chunks that were sent), `meta`, `sha256` (over the rest). With the manifest of an earlier checkpoint of
    the same tenant as `previous` its chunks are known to be there; else the store is asked for each.

    Raises Unavailable, OSError, and ValueError for names that can't be restored.
    """
    _check_names([name for name, _ in files])
    known = _chunks_of(previous)
    uploads = _Uploads(store, tenant, cipher, ask=previous is None)
    entries: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    uploaded = sum(_in_order(uploads.send, _new_chunks(files, known, within, entries, left_out)))
    manifest: Manifest = {
        "version": VERSION,
        "id": ids.make(time.time_ns() // 1_000_000, secrets.token_bytes(10)),
        "session": session,
        "files": entries,
        "left_out": left_out,
        "bytes": sum(entry.get("size", 0) for entry in entries),
        "uploaded": uploaded,
        "meta": dict(meta),
    }
    manifest["sha256"] = _digest(manifest)
    put_once(store, keys.checkpoint(tenant, session, manifest["id"]), orjson.dumps(manifest), if_none_match=True)
    if left_out:
        log.warning("checkpoint.left_out", tenant=tenant, session=session, count=len(left_out))
    return manifest


def read(store: Store, tenant: str, session: str, ckpt: str) -> Manifest:
    """The manifest of a checkpoint. Raises Missing, Unavailable, Corrupt."""
    key = keys.checkpoint(tenant, session, ckpt)
    manifest = parse_json(key, _get(store, key, "the checkpoint does not exist"))
    if manifest.get("sha256") != _digest(manifest) or manifest.get("id") != ckpt or manifest.get("version") != VERSION:
        raise Corrupt("the manifest of a checkpoint is damaged", key)
    return manifest


def restore(store: Store, tenant: str, session: str, ckpt: str, root: Path, *, cipher: Cipher) -> Manifest:
    """Put the files of a checkpoint into the new directory `root` (absent, or empty) and give the manifest.

    Raises Corrupt, naming the key, for anything that isn't exactly what was saved; Missing if there is no such checkpoint;
    Unavailable; OSError, and FileExistsError if `root` holds something. After an error `root` is as before.
    """
    manifest = read(store, tenant, session, ckpt)
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(f"{root} is not empty")
    for leftover in root.parent.glob(f".{root.name}.*.restoring"):
        shutil.rmtree(leftover)
    partial = root.parent / f".{root.name}.{secrets.token_hex(4)}.restoring"
    partial.mkdir(mode=0o700)
    try:
        _write(manifest, keys.checkpoint(tenant, session, ckpt), partial, _Downloads(store, tenant, cipher))
        partial.replace(root)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return manifest


def chunk(store: Store, tenant: str, digest: str, *, cipher: Cipher) -> bytes:
    """One plain chunk, proven to be what its name says. Raises Corrupt, Unavailable."""
    return _Downloads(store, tenant, cipher).fetch(digest)


# Saving


class _Uploads:
    """Sends the chunks that aren't in the store."""

    def __init__(self, store: Store, tenant: str, cipher: Cipher, *, ask: bool) -> None:
        self._store, self._tenant, self._cipher, self._ask = store, tenant, cipher, ask

    def send(self, chunk: bytes) -> int:
        """Gives the number of bytes sent, 0 if the store had the chunk. Raises Unavailable."""
        digest = hashlib.sha256(chunk).hexdigest()
        key = keys.native_chunk(self._tenant, digest)
        if self._ask and self._has(key):
            return 0
        sealed = self._cipher.encrypt(zstandard.ZstdCompressor(level=LEVEL).compress(chunk), key.encode())
        with suppress(PreconditionFailed):  # somebody else has sent the same
            put_once(self._store, key, sealed, if_none_match=True)
        return len(sealed)

    def _has(self, key: str) -> bool:
        try:
            self._store.head(key)
        except Absent:
            return False
        except StoreError as error:
            raise Unavailable("the object store can't be read just now") from error
        return True


def _new_chunks(
    files: Sequence[tuple[str, Path]],
    known: set[str],
    within: Path | None,
    entries: list[dict[str, Any]],
    left_out: list[dict[str, str]],
) -> Iterator[bytes]:
    """Reads all files, gives each chunk that isn't in `known` once, and fills `entries` and `left_out`."""
    seen = set(known)
    for name, path in files:
        if path.is_symlink():
            entries.append({**_named("path", name), **_named("link", os.readlink(path))})  # noqa: PTH115 - keeps "./"
            continue
        file = _opened(path, within)
        if file is None:
            left_out.append(_named("path", name))
            continue
        with file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            entry: dict[str, Any] = {**_named("path", name), "size": 0, "mode": mode, "chunks": []}
            entries.append(entry)
            while chunk := file.read(CHUNK_BYTES):
                digest = hashlib.sha256(chunk).hexdigest()
                entry["size"] += len(chunk)
                entry["chunks"].append(digest)
                if digest not in seen:
                    seen.add(digest)
                    yield chunk


def _opened(path: Path, within: Path | None) -> BinaryIO | None:
    """The file, if it is a plain one inside `within`; judged after opening, so that nobody can exchange it in between."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket; a link, since a moment ago
            return None
        raise
    plain = stat.S_ISREG(os.fstat(handle).st_mode)
    if plain and within is not None:
        real = Path(f"/proc/self/fd/{handle}").resolve()
        plain = real.is_relative_to(within.resolve())
    if not plain:
        os.close(handle)
        return None
    return os.fdopen(handle, "rb")


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError("two files of a checkpoint have one name")
    for name in names:
        if not _safe(name):
            raise ValueError(f"not a relative name: {name[:200]!r}")


def _safe(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in name


# Restoring


class _Downloads:
    """Gets chunks and proves that they are what their names say."""

    def __init__(self, store: Store, tenant: str, cipher: Cipher) -> None:
        self._store, self._tenant, self._cipher = store, tenant, cipher

    def fetch(self, digest: str) -> bytes:
        """The plain chunk. Raises Corrupt, Unavailable."""
        key = keys.native_chunk(self._tenant, digest)
        try:
            packed = self._cipher.decrypt(_get(self._store, key), key.encode())
            chunk = zstandard.ZstdDecompressor().decompress(packed, max_output_size=CHUNK_BYTES)
        except Missing:
            raise Corrupt("a chunk of a checkpoint is missing", key) from None
        except (Undecryptable, zstandard.ZstdError) as error:
            raise Corrupt(f"a chunk of a checkpoint can't be read ({error})", key) from None
        if hashlib.sha256(chunk).hexdigest() != digest:
            raise Corrupt("a chunk of a checkpoint is not what its name says", key)
        return chunk


def _write(manifest: Manifest, key: str, root: Path, downloads: _Downloads) -> None:
    """All files, then all links, so that nothing is ever written through a link."""
    files, links = _entries(manifest, key)
    chunks = _in_order(downloads.fetch, (digest for entry in files for digest in entry["chunks"]))
    for entry in files:
        path = root / _name(entry, "path")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("xb") as file:
            for _ in entry["chunks"]:
                file.write(next(chunks))
            if file.tell() != entry["size"]:
                raise Corrupt("a file of a checkpoint has another size than it had", key)
        path.chmod(entry["mode"] & 0o777)
    for entry in links:
        path = root / _name(entry, "path")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.symlink_to(_name(entry, "link"))


def _entries(manifest: Manifest, key: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The manifest's files and links. Raises Corrupt if one would be written outside of the directory, or twice."""
    entries: list[dict[str, Any]] = manifest["files"]
    try:
        _check_names([_name(entry, "path") for entry in entries])
    except ValueError:
        raise Corrupt("the manifest of a checkpoint names files that can't be", key) from None
    files = [entry for entry in entries if "chunks" in entry]
    return files, [entry for entry in entries if "chunks" not in entry]


# Both


def _get(store: Store, key: str, absent: str = "no such object") -> bytes:
    """The object, also if `byre gc` has put it into the trash: it looks for what is in use again only before it deletes."""
    try:
        try:
            return store.get(key).body
        except Absent:
            return trash.find(store, key).body
    except Absent:
        raise Missing(absent) from None
    except StoreError as error:
        raise Unavailable("the object store can't be read just now") from error


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _chunks_of(manifest: Mapping[str, Any] | None) -> set[str]:
    entries = manifest["files"] if manifest else []
    return {digest for entry in entries for digest in entry.get("chunks", ())}


def _named(field: str, name: str) -> dict[str, str]:
    """A name of a file for JSON; one that isn't UTF-8 in base64."""
    raw = os.fsencode(name)
    try:
        return {field: raw.decode()}
    except UnicodeDecodeError:
        return {f"{field}_base64": base64.b64encode(raw).decode()}


def _name(entry: Mapping[str, Any], field: str) -> str:
    coded = entry.get(f"{field}_base64")
    return str(entry[field]) if coded is None else os.fsdecode(base64.b64decode(coded))


def _in_order(work: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """What `work` makes of each item, in order, `AT_ONCE` of them at a time."""
    running: deque[Future[B]] = deque()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="checkpoint") as pool:
        try:
            for item in items:
                if len(running) == AT_ONCE:
                    yield running.popleft().result()
                running.append(pool.submit(work, item))
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
