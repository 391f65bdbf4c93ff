"""What no session needs any more, found and put into the trash: `byre gc`.

Rules: it needs the object store only, and may run beside everything else, also beside itself. Nothing is deleted at once: what goes is
moved to the trash (`app/store/trash.py`), and only what has lain there for `window` seconds and is still of no use is deleted. What
can't be read or understood is kept, and said. Of an erased session everything goes, at once and for good.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from typing import Any

import orjson

from app.core import ids
from app.core.chain import Chain
from app.core.errors import Corrupt, Missing
from app.core.session import State
from app.log import heads
from app.log.compact import Compactor
from app.log.heads import LogHead
from app.log.leftovers import leftovers
from app.log.recover import current
from app.log.segment import is_fence
from app.log.segments import Segments
from app.services.garbage_tally import Kind, Tally
from app.services.inputs import waiting
from app.services.retention import DAY, Keep, expired
from app.store import keys
from app.store.contract import Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace, parse_json
from app.store.trash import Trash

AT_ONCE = 8
BATCH = 64
Manifest = Mapping[str, Any]
ReadManifest = Callable[[str, str, str], Manifest]
"""The manifest of (tenant, session, checkpoint). Raises Missing, Corrupt, Unavailable."""


class Garbage:
    """One run over a deployment's store. `apply` False only counts. `window`: seconds that trash is kept; `progress` hears of each step."""

    def __init__(
        self,
        store: Store,
        read_manifest: ReadManifest,
        *,
        keep: Keep,
        window: float,
        now: Callable[[], float],
        apply: bool,
        progress: Callable[[str], None] = lambda _: None,
        pace: Pace = REAL,
    ) -> None:
        self._read_manifest, self._keep, self._window, self._now = read_manifest, keep, window, now
        self._apply, self._progress, self._pace = apply, progress, pace
        self._archive = _Archive(store, pace)
        self._trash = Trash(store, pace)
        self.run_id = ids.make(int(now() * 1000), os.urandom(10))
        self.tally = Tally()

    def run(self, tenants: Iterable[str] | None = None) -> Tally:
        """Goes through `tenants`, or all. Raises Unavailable: what was done by then is done."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gc") as pool:
            for tenant in tenants if tenants is not None else self._trash.folders(keys.tenants_prefix()):
                _Tenant(self, tenant, pool).run()
        return self.tally


class _Archive:
    """What compaction needs, without a Redis."""

    def __init__(self, store: Store, pace: Pace) -> None:
        self.store, self.pace = store, pace
        self.segments = Segments(store, pace)

    def head(self, log: LogName, gen: int | None = None) -> LogHead:
        return heads.load(self.store, log, self.pace)

    def keep(self, log: LogName, head: LogHead, asked: float | None = None) -> LogHead:
        return head


class _Tenant:
    def __init__(self, run: Garbage, tenant: str, pool: ThreadPoolExecutor) -> None:
        self._run, self._tenant, self._pool = run, tenant, pool
        self._trash, self._archive, self._now = run._trash, run._archive, run._now()
        self._lock = threading.Lock()
        self._live: set[bytes] = set()
        self._undoable: set[bytes] = set()
        """What checkpoints need that are in the trash, and may come back by an undo."""
        self._whole = True
        """Whether every manifest could be read, so that what none names is of no use."""

    def run(self) -> None:
        runs = self._trash.runs(self._tenant)
        # listed before any manifest is read: what a save that goes on meanwhile uploads is no candidate
        chunks = {_digest(key) for key in self._trash.under(keys.native_prefix(self._tenant))}
        self._log(LogName(self._tenant, None))
        sessions = self._trash.folders(keys.sessions_prefix(self._tenant))
        for number, _ in enumerate(self._pool.map(self._session, sessions), 1):
            self._run._progress(f"{self._tenant}: session {number}")
        self._pending()
        self._rescue(runs)
        if self._whole:
            unnamed = sorted(chunk.hex() for chunk in chunks - self._live)
            self._go_all(Kind.CHUNK, (keys.native_chunk(self._tenant, chunk) for chunk in unnamed))
            self._empty(runs)
        else:
            self._say("native state and old trash are kept, because not every checkpoint could be read")

    # Sessions

    def _session(self, session: str) -> None:
        name = LogName(self._tenant, session)
        key = keys.head_object(name)
        raw = self._trash.get(key)
        manifests: dict[str, Manifest] = {}
        gone: set[str] = set()
        try:
            if raw is None:
                raise Missing("it has no session.json")
            doc = parse_json(key, raw)
            if doc.get("erased"):
                self._erased(session)
                return
            manifests = self._manifests(session)
            gone = self._expired(name, heads.parse(doc, key).chain, manifests)
            for ckpt in gone:
                self._go(Kind.CHECKPOINT, keys.checkpoint(self._tenant, session, ckpt))
            self._log(name)
        except (Missing, Corrupt) as error:
            self._say(f"session {session} is left as it is: {error.message}")
            manifests = manifests or self._manifests(session)
        with self._lock:
            for ckpt, manifest in manifests.items():
                (self._undoable if ckpt in gone else self._live).update(_chunks(manifest))

    def _log(self, name: LogName) -> None:
        """Compacts a log that has many small segments, then finds what it has left behind."""
        compactor = Compactor(self._archive, self._run._now)
        try:
            if compactor.due(name):
                with self._lock:
                    self._run.tally.compacted += 1
                if self._run._apply:
                    compactor.run(name)
            chain = self._archive.head(name).chain
            for each in leftovers(self._archive.segments, self._trash.under, name, chain, self._now):
                self._go(Kind.MERGED if each.merged else Kind.LEFT, each.key, each.body)
        except Missing:
            return
        except Corrupt as error:
            self._say(f"the log {name.text} is left as it is: {error.message} ({error.key})")

    def _manifests(self, session: str) -> dict[str, Manifest]:
        """All manifests of a session that can be read, by id."""
        found: dict[str, Manifest] = {}
        for key in self._trash.under(keys.checkpoint_prefix(self._tenant, session)):
            ckpt = keys.last_part(key)
            try:
                ids.time_ms(ckpt)
                found[ckpt] = self._run._read_manifest(self._tenant, session, ckpt)
            except Missing:
                continue
            except (Corrupt, ValueError) as error:
                self._whole = False
                self._say(f"checkpoint {ckpt} of session {session} can't be read: {error}")
        return found

    def _expired(self, name: LogName, chain: Chain, manifests: Mapping[str, Manifest]) -> set[str]:
        assert name.session
        gone = set(expired(self._run._keep, chain, manifests, (), self._now))
        if not gone:
            return gone
        state = self._state(name.session)
        if state is None:
            return set()
        latest = [state.checkpoint.id] if state.checkpoint else []
        return set(expired(self._run._keep, chain, manifests, latest, self._now))

    def _state(self, session: str) -> State | None:
        """The archived state of a session, None if there is none that can be read."""
        name = LogName(self._tenant, session)
        try:
            return current(self._archive.segments, name, self._archive.head(name).chain)[0]
        except (Missing, Corrupt):
            return None

    def _erased(self, session: str) -> None:
        head = keys.session_json(self._tenant, session)
        for key in self._trash.under(keys.session_prefix(self._tenant, session)):
            body = b"" if key == head else self._trash.get(key)
            if body and not is_fence(body):
                self._go(Kind.ERASED, key, body, for_good=True)
        for key in self._trash.under(keys.pending_prefix(self._tenant, session)):
            self._go(Kind.ERASED, key, for_good=True)

    def _pending(self) -> None:
        all_keys = self._trash.under(keys.pending_prefix(self._tenant))
        for session, group in groupby(all_keys, key=lambda key: keys.parse_pending(key).session):
            old = [(key, event, body) for key in group for event, body in self._accepted(key)]
            state = self._state(session) if old else None
            for key, event, body in old:
                if state is not None and not waiting(state, event):
                    self._go(Kind.PENDING, key, body)

    def _accepted(self, key: str) -> Iterator[tuple[str, bytes]]:
        """The event's id and the body of a pending object that is older than a day; a younger one may not be in the log yet."""
        body = self._trash.get(key)
        if body is None:
            return
        try:
            event = str(orjson.loads(body)["id"])
            if self._now - ids.time_ms(event) / 1000 > DAY:
                yield event, body
        except (ValueError, KeyError, TypeError):
            self._say(f"the pending object {key} can't be read")

    # Native state and trash

    def _rescue(self, runs: Iterable[str]) -> None:
        """Puts back what is in the trash and in use again."""
        for run in runs:
            for copy in self._trash.content(self._tenant, run):
                key = keys.parse_trashed(copy).key
                if key.startswith(keys.sessions_prefix(self._tenant)) and "/checkpoints/" in key:
                    self._rescue_checkpoint(run, copy, key)
        for run in runs:
            for copy in self._trash.content(self._tenant, run):
                key = keys.parse_trashed(copy).key
                if key.startswith(keys.native_prefix(self._tenant)) and _digest(key) in self._live:
                    self._put_back(copy)

    def _rescue_checkpoint(self, run: str, copy: str, key: str) -> None:
        body = self._trash.get(copy)
        if body is None:
            return
        session = key.removeprefix(keys.sessions_prefix(self._tenant)).split("/")[0]
        state = self._state(session)
        needed = state is not None and state.checkpoint is not None and state.checkpoint.id == keys.last_part(key)
        try:
            chunks = set(_chunks(parse_json(copy, body)))
        except (Corrupt, KeyError, TypeError, ValueError, AttributeError):
            self._say(f"{copy} can't be read")
            return
        if needed:
            self._live |= chunks
            self._put_back(copy)
        elif not self._is_over(run):
            self._undoable |= chunks

    def _put_back(self, copy: str) -> None:
        self._run.tally.put_back += 1
        if self._run._apply:
            self._trash.put_back(copy)

    def _empty(self, runs: Iterable[str]) -> None:
        native = keys.native_prefix(self._tenant)
        for run in filter(self._is_over, runs):
            copies = ((copy, keys.parse_trashed(copy).key) for copy in self._trash.content(self._tenant, run))
            over = (copy for copy, key in copies if not key.startswith(native) or _digest(key) not in self._undoable)
            self._go_all(Kind.TRASH, over, for_good=True)

    def _is_over(self, run: str) -> bool:
        return self._now - ids.time_ms(run) / 1000 > self._run._window

    # Letting go

    def _go_all(self, kind: Kind, found: Iterable[str], *, for_good: bool = False) -> None:
        """`_go` for many, several at a time."""
        rest = iter(found)
        done = 0
        while batch := list(islice(rest, BATCH)):
            list(self._pool.map(lambda key: self._go(kind, key, for_good=for_good), batch))
            done += len(batch)
            self._run._progress(f"{self._tenant}: {kind}: {done}")

    def _go(self, kind: Kind, key: str, body: bytes | None = None, *, for_good: bool = False) -> None:
        """Counts an object, and if this run applies what it finds, moves it to the trash or deletes it."""
        if self._run._apply and not for_good and body is None:
            body = self._trash.get(key)
            if body is None:
                return
        size = self._trash.size(key) if body is None else len(body)
        with self._lock:
            self._run.tally.add(self._tenant, kind, size)
        if self._run._apply and for_good:
            self._trash.delete(key)
        elif self._run._apply:
            self._trash.discard(self._run.run_id, key, body or b"")

    def _say(self, note: str) -> None:
        with self._lock:
            self._run.tally.notes.append(f"{self._tenant}: {note}")


def undo(store: Store, run: str | None, pace: Pace = REAL) -> tuple[str | None, int]:
    """Puts back everything that `run` (None: the latest one) has put into the trash; the run and how many objects."""
    trash = Trash(store, pace)
    tenants = list(trash.folders(keys.tenants_prefix()))
    if run is None:
        run = max((each for tenant in tenants for each in trash.runs(tenant)), default=None)
    if run is None:
        return None, 0
    return run, sum(trash.put_back(copy) for tenant in tenants for copy in list(trash.content(tenant, run)))


def _chunks(manifest: Manifest) -> Iterator[bytes]:
    return (bytes.fromhex(chunk) for file in manifest["files"] for chunk in file.get("chunks", ()))


def _digest(key: str) -> bytes:
    return bytes.fromhex(keys.parse_native_chunk(key))
