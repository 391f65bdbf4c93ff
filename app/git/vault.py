"""The bundles of one task or one project in the object store.

Each bundle is a file, by its SHA-256, and a manifest with a number: the manifest is created once, after the file, so a chain has no
holes and of two who write the same number one wins. A manifest says where its chain begins (`start`, the number of a full bundle), and
which host wrote it (`host`).

Rules: what is read is checked against the manifest before it is used; a chain that a full bundle has replaced is only moved into the trash,
after that bundle was read back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from app.core.errors import Conflict, Corrupt, Unavailable
from app.git import bundles
from app.git.bundles import Manifest
from app.git.rebuild import Part
from app.store import keys, trash
from app.store.contract import Absent, PreconditionFailed, Store
from app.store.puts import parse_json, put_once

PUT_SECONDS = 30.0
Parts = list[Part]
Manifests = list[Manifest]


class Outrun(Conflict):
    """Another host has written the bundle with this number."""


class Vault:
    """`owner` is the key of the task's or project's own object; `scratch` a directory of ours for files on their way."""

    def __init__(self, store: Store, owner: str, scratch: Path) -> None:
        self._store, self._owner, self._scratch = store, owner, scratch

    def latest(self) -> Manifest | None:
        """The manifest of the last bundle, with its number as `seq`; None if there is none. Raises Unavailable, Corrupt."""
        found = list(trash.Trash(self._store).under(keys.bundles_prefix(self._owner)))
        return self._read(found[-1]) if found else None

    def chain(self) -> Manifests:
        """The manifests of the last chain: a full bundle and those after it; empty if there is none. Raises Unavailable, Corrupt."""
        last = self.latest()
        if last is None:
            return []
        before = [self._read(keys.bundle(self._owner, seq)) for seq in range(last["start"], last["seq"])]
        return [*before, last]

    def add(self, seq: int, manifest: Manifest, file: Path, *, start: int, host: str) -> Manifest:
        """Puts a bundle into the store as number `seq`; gives its manifest as it is stored. Raises Outrun, Unavailable.

        `start` is the number of the full bundle that its chain begins with: `seq` itself for a full one.
        """
        whole = {**manifest, "seq": seq, "start": start, "host": host}
        trash.patiently(lambda: self._store.put_file(keys.pack(self._owner, manifest["sha256"]), file))
        try:
            put_once(
                self._store,
                keys.bundle(self._owner, seq),
                orjson.dumps(whole),
                if_none_match=True,
                deadline_seconds=PUT_SECONDS,
            )
        except PreconditionFailed:
            raise Outrun(f"bundle {seq} was written by another") from None
        return whole

    @contextmanager
    def files(self, chain: Manifests) -> Iterator[Parts]:
        """The bundles of `chain` as files, for as long as the block lasts. Raises Unavailable, Corrupt."""
        self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix="bundles-", dir=self._scratch) as place:
            parts = []
            for manifest in chain:
                key = keys.pack(self._owner, manifest["sha256"])
                file = Path(place) / f"{manifest['seq']}.bundle"
                self._get_file(key, file)
                parts.append(Part(manifest, file, key))
            yield parts

    def confirm(self, chain: Manifests) -> None:
        """Reads all bundles of a chain back. Raises Corrupt unless each is what its manifest says; Unavailable."""
        for manifest in chain:
            with self.files([manifest]) as parts:
                assert parts[0].file
                bundles.verify(parts[0].file, manifest, parts[0].key)

    def drop_before(self, start: int, run: str) -> None:
        """Moves into the trash what the chain that begins with `start` has replaced. That chain was confirmed. Raises Unavailable."""
        bin_ = trash.Trash(self._store)
        old = [key for key in bin_.under(keys.bundles_prefix(self._owner)) if key < keys.bundle(self._owner, start)]
        kept = {manifest["sha256"] for manifest in self.chain()}
        for key in old:
            with suppress(Absent, Corrupt):
                digest = self._read(key)["sha256"]
                if digest not in kept:
                    self._discard(bin_, run, keys.pack(self._owner, digest))
            self._discard(bin_, run, key)

    def discard(self, run: str) -> None:
        """Moves all of it into the trash. Raises Unavailable."""
        bin_ = trash.Trash(self._store)
        for prefix in (keys.packs_prefix(self._owner), keys.bundles_prefix(self._owner)):
            for key in list(bin_.under(prefix)):
                self._discard(bin_, run, key)

    def bytes(self) -> int:
        """How much the bundles take in the store. Raises Unavailable."""
        bin_ = trash.Trash(self._store)
        return sum(bin_.size(key) for key in bin_.under(keys.packs_prefix(self._owner)))

    def _discard(self, bin_: trash.Trash, run: str, key: str) -> None:
        copy = keys.trashed(keys.tenant_of(key), run, key)
        self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix="trash-", dir=self._scratch) as place, suppress(Absent):
            file = Path(place) / "object"
            trash.patiently(lambda: self._store.get_file(key, file))
            trash.patiently(lambda: self._store.put_file(copy, file))
        bin_.delete(key)

    def _get_file(self, key: str, file: Path) -> None:
        try:
            trash.patiently(lambda: self._store.get_file(key, file))
        except Absent:
            raise Corrupt("a bundle is missing in the store", key) from None

    def _read(self, key: str) -> Manifest:
        try:
            got = trash.patiently(lambda: self._store.get(key))
        except Absent:
            raise Unavailable("the bundles of this task are just being replaced") from None
        return checked(parse_json(key, got.body), key)


def checked(manifest: Mapping[str, Any], key: str) -> Manifest:
    """`manifest`, if it has what every one has. Raises Corrupt."""
    if manifest.get("version") != bundles.VERSION:
        raise Corrupt("a bundle is of a version that this release doesn't know", key)
    if not all(isinstance(manifest.get(name), int) for name in ("seq", "start", "bytes")) or not manifest.get("sha256"):
        raise Corrupt("the manifest of a bundle is damaged", key)
    return dict(manifest)
