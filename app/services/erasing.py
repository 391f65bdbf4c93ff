"""Erasing a session: everything that it has in the store and in Redis goes, at once and for good.

Rules: first nobody can write it any more (its head says that it is erased, its generation is fenced, its tail in Redis is gone), then its
objects are deleted, the trash's copies too. What stays is a head that says only that there was a session, and fences, which hold a
random number. Chunks of native state go unless another session's checkpoint names them; while one of those can't be read, all stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from app.coord.coord import Coord, Seed
from app.core.chain import Generation
from app.core.errors import Corrupt, Missing, Unavailable
from app.core.session import State, Status
from app.log import heads
from app.log.heads import LogHead
from app.log.segment import Fence, encode_fence, is_fence
from app.log.segments import Segments
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace, put_once, update_json
from app.store.trash import Trash

TRIES = 8
ReadManifest = Callable[[str, str, str], Mapping[str, Any]]


class Erased(NamedTuple):
    """What went, or would go: objects of the session itself, chunks of native state, copies in the trash. `kept` says why chunks stay."""

    objects: int
    chunks: int
    trashed: int
    kept: str = ""


class Eraser:
    """Erases sessions of `store`; `coord` is the Redis that has their tails."""

    def __init__(self, store: Store, coord: Coord, read_manifest: ReadManifest, pace: Pace = REAL) -> None:
        self._store, self._coord, self._read_manifest, self._pace = store, coord, read_manifest, pace
        self._trash = Trash(store, pace)

    def erase(self, name: LogName, *, really: bool) -> Erased:
        """Erases a session, or only counts. May be repeated after an error. Raises Missing, Unavailable."""
        assert name.session
        if self._trash.get(keys.head_object(name)) is None:
            raise Missing("no such session")
        if really:
            self._stop(name)
        chunks, kept = self._own_chunks(name)
        objects = list(self._objects(name))
        copies = list(self._copies(name, chunks))
        if really:
            # manifests last: after a crash the next attempt still finds which chunks were theirs
            for key in (*(keys.native_chunk(name.tenant, chunk) for chunk in sorted(chunks)), *copies, *objects):
                self._trash.delete(key)
        return Erased(len(objects), len(chunks), len(copies), kept)

    def _stop(self, name: LogName) -> None:
        """From here on nobody can read the session or add to it."""
        head: LogHead | None = None
        try:
            head = heads.load(self._store, name, self._pace, frozen_too=True)
            self._fence(name, head.last)
        except (Missing, Corrupt):
            pass  # erased before, but maybe not to the end; or too damaged to be fenced
        doc = orjson.loads(self._trash.get(keys.head_object(name)) or b"{}")
        gen = max((entry["gen"] for entry in doc.get("chain") or ()), default=0) + 1

        def bare(doc: dict[str, Any]) -> dict[str, Any] | None:
            if doc.get("erased"):
                return None
            return {"id": name.session, "erased": True, "chain": doc.get("chain"), "epoch": doc.get("epoch", 0)}

        update_json(self._store, keys.head_object(name), bare, pace=self._pace)
        closed = orjson.dumps(State(status=Status.CLOSED).to_json())
        seed = Seed(
            gen=gen, inc=self._coord.incarnation(), next=0, state=closed, status=str(Status.CLOSED), not_before=0, epoch=0,
            vendor=head.vendor if head else "", astate=closed, asha="", grace_ms=0, keys={}, ids={},
        )  # fmt: skip
        self._coord.seed(name.text, seed)

    def _fence(self, name: LogName, gen: Generation) -> None:
        for _ in range(TRIES):
            at, _, fenced = Segments(self._store, self._pace).head(name, gen)
            if fenced:
                return
            put_id = self._pace.token()
            key = keys.segment(name, gen.gen, at)
            try:
                put_once(self._store, key, encode_fence(put_id), if_none_match=True, put_id=put_id, pace=self._pace)
                return
            except PreconditionFailed:
                if isinstance(Segments(self._store, self._pace).load(name, gen.gen, at), Fence):
                    return
        raise Unavailable("the session is being written too fast to be erased; close it first")

    def _objects(self, name: LogName) -> Iterator[str]:
        assert name.session
        head = keys.head_object(name)
        for key in self._trash.under(keys.session_prefix(name.tenant, name.session)):
            if key == head or ("/log/" in key and is_fence(self._trash.get(key) or b"")):
                continue
            yield key
        yield from self._trash.under(keys.pending_prefix(name.tenant, name.session))

    def _own_chunks(self, name: LogName) -> tuple[set[str], str]:
        """Chunks that only this session's checkpoints name, in place or in the trash; and why they must stay, if they must."""
        assert name.session
        mine = {chunk for raw in self._manifests_of(name) for chunk in raw}
        if not mine:
            return mine, ""
        for session in self._trash.folders(keys.sessions_prefix(name.tenant)):
            if session == name.session:
                continue
            for key in self._trash.under(keys.checkpoint_prefix(name.tenant, session)):
                try:
                    mine -= _chunks(self._read_manifest(name.tenant, session, keys.last_part(key)))
                except Missing:
                    continue
                except Corrupt:
                    return set(), f"a checkpoint of session {session} can't be read, so it isn't known which chunks it needs"
        for copy in self._trashed_manifests(name):
            try:
                mine -= _chunks(orjson.loads(self._trash.get(copy) or b""))
            except (ValueError, KeyError, TypeError, AttributeError):
                return set(), f"{copy} can't be read, so it isn't known which chunks it needs"
        return mine, ""

    def _trashed_manifests(self, name: LogName) -> Iterator[str]:
        """Manifests of other sessions that are in the trash, and may come back."""
        assert name.session
        sessions, own = keys.sessions_prefix(name.tenant), keys.session_prefix(name.tenant, name.session)
        for run in self._trash.runs(name.tenant):
            for copy in self._trash.content(name.tenant, run):
                key = keys.parse_trashed(copy).key
                if key.startswith(sessions) and "/checkpoints/" in key and not key.startswith(own):
                    yield copy

    def _manifests_of(self, name: LogName) -> Iterator[set[str]]:
        assert name.session
        prefix = keys.checkpoint_prefix(name.tenant, name.session)
        copies = (keys.trashed(name.tenant, run, f"{prefix}x")[:-1] for run in self._trash.runs(name.tenant))
        for where in (prefix, *copies):
            for key in self._trash.under(where):
                try:
                    yield _chunks(orjson.loads(self._trash.get(key) or b"{}"))
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # what it named can't be known; `byre gc` finds it

    def _copies(self, name: LogName, chunks: set[str]) -> Iterator[str]:
        """Copies in the trash of the session's objects and of its own chunks."""
        assert name.session
        mine = (keys.session_prefix(name.tenant, name.session), keys.pending_prefix(name.tenant, name.session))
        native = keys.native_prefix(name.tenant)
        for run in self._trash.runs(name.tenant):
            for copy in self._trash.content(name.tenant, run):
                key = keys.parse_trashed(copy).key
                if key.startswith(mine) or (key.startswith(native) and keys.parse_native_chunk(key) in chunks):
                    yield copy


def _chunks(manifest: Mapping[str, Any]) -> set[str]:
    return {chunk for file in manifest["files"] for chunk in file.get("chunks", ())}
