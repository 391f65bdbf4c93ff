"""Reading everything of a session again: its head, its log, its checkpoints, its pending inputs. What `byre check --session` says.

Rules: it changes nothing and repairs nothing; it names every object that isn't what was written. It needs the store and the secret key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from app.core import chain as chains
from app.core.cursor import Position
from app.core.errors import Corrupt, Missing
from app.core.session import State
from app.log import events, heads
from app.log.heads import LogHead
from app.log.recover import current
from app.log.segments import Segments
from app.log.verify import Findings, LogCheck
from app.services.inputs import waiting
from app.store import keys
from app.store.contract import Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace
from app.store.trash import Trash

ReadManifest = Callable[[str, str, str], Mapping[str, Any]]
"""The manifest of (tenant, session, checkpoint). Raises Missing, Corrupt, Unavailable."""
ReadChunk = Callable[[str, str], object]
"""A chunk of (tenant, SHA-256), proven to be what its name says. Raises Corrupt, Unavailable."""


class SessionCheck:
    """Checks one session."""

    def __init__(
        self,
        store: Store,
        name: LogName,
        read_manifest: ReadManifest,
        read_chunk: ReadChunk,
        progress: Callable[[str], None] = lambda _: None,
        pace: Pace = REAL,
    ) -> None:
        self._store, self._name, self._pace = store, name, pace
        self._read_manifest, self._read_chunk, self._progress = read_manifest, read_chunk, progress
        self._trash = Trash(store, pace)
        self._segments = Segments(store, pace)
        self.findings = Findings()

    def run(self) -> Findings:
        """Checks everything. Raises Missing if there is no such session, Unavailable."""
        found = self.findings
        try:
            head = heads.load(self._store, self._name, self._pace, frozen_too=True)
        except Corrupt as error:
            found.bad.append((keys.head_object(self._name), error.message))
            return found
        found.good.append(f"session.json: {len(head.chain)} generations, epoch {head.epoch}")
        if head.doc.get("frozen"):
            found.notes.append(f"the session is frozen, because of {head.doc['frozen']['object']}")
        self._progress("log")
        LogCheck(self._segments, self._trash.under, self._name, head, found).run()
        try:
            state, _, upto = current(self._segments, self._name, head.chain)
        except Corrupt as error:
            if all(key != error.key for key, _ in found.bad):
                found.bad.append((error.key, error.message))
            self._checkpoints(head, None)
            return found
        found.good.append(f"state: {state.status} after {upto} events, {len(state.queue)} inputs wait")
        self._checkpoints(head, state)
        self._pending(head, state)
        if heads.load(self._store, self._name, self._pace, frozen_too=True).chain != head.chain:
            found.notes.append("the session was recovered, restored or compacted meanwhile: check again")
        return found

    def _checkpoints(self, head: LogHead, state: State | None) -> None:
        assert self._name.session
        tenant, session = self._name.tenant, self._name.session
        ckpts = {keys.last_part(key) for key in self._trash.under(keys.checkpoint_prefix(tenant, session))}
        latest = state.checkpoint.id if state and state.checkpoint else None
        if latest:
            ckpts.add(latest)
            pointer = head.doc.get("checkpoint") or {}
            if pointer.get("id") != latest:
                self.findings.notes.append("the checkpoint pointer in session.json is behind; `flush` repairs it")
        chunks: set[str] = set()
        for ckpt in sorted(ckpts):
            self._progress(f"checkpoint {ckpt}")
            self._checkpoint(tenant, session, ckpt, chunks)
        self.findings.good.append(f"checkpoints: {len(ckpts)}, with {len(chunks)} chunks of native state")

    def _checkpoint(self, tenant: str, session: str, ckpt: str, chunks: set[str]) -> None:
        key = keys.checkpoint(tenant, session, ckpt)
        try:
            manifest = self._read_manifest(tenant, session, ckpt)
        except Missing:
            self.findings.bad.append((key, "the manifest of the last checkpoint is missing"))
            return
        except Corrupt as error:
            self.findings.bad.append((error.key, error.message))
            return
        for file in manifest["files"]:
            for chunk in file.get("chunks", ()):
                if chunk in chunks:
                    continue
                chunks.add(chunk)
                self._progress(f"checkpoint {ckpt}, chunk {len(chunks)}")
                try:
                    self._read_chunk(tenant, chunk)
                except Corrupt as error:
                    self.findings.bad.append((error.key, error.message))

    def _pending(self, head: LogHead, state: State) -> None:
        assert self._name.session
        count = 0
        for key in self._trash.under(keys.pending_prefix(self._name.tenant, self._name.session)):
            count += 1
            place = keys.parse_pending(key)
            body = self._trash.get(key)
            try:
                event = str(orjson.loads(body or b"")["id"])
            except (ValueError, KeyError, TypeError):
                self.findings.bad.append((key, "the pending object can't be read"))
                continue
            there = self._id_at(head, place.gen, place.offset)
            if there is not None and there != event:
                self.findings.bad.append((key, "the log has another event at its place"))
            elif there is None and chains.covers(head.chain, Position(place.gen, place.offset), None):
                self.findings.notes.append(f"{key}: its input is not in the archive, so it was not acknowledged (yet)")
            elif not waiting(state, event):
                self.findings.notes.append(f"{key}: its input waits no more; the sweep or `byre gc` removes it")
        self.findings.good.append(f"pending inputs: {count}")

    def _id_at(self, head: LogHead, gen: int, offset: int) -> str | None:
        entry = next((each for each in head.chain if each.gen == gen), None)
        try:
            found = self._segments.find(self._name, entry, offset) if entry else None
        except Corrupt:
            return None  # named already
        return events.id_of(found.lines[offset - found.first]) if found else None
