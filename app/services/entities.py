"""Entities of byre: one object each in the store, changed only by CAS, which is the acknowledgement.

An entity's document carries `version` and an `outbox`: the workspace events of its changes that aren't known to be in the workspace
log. They are published after the CAS, and the outbox is emptied by another CAS once they are in a segment. Whoever reads an entity
with an unpublished outbox publishes it first, so a crash in between delays an event and loses none.

Rules: an event's id follows from entity, version and position, so publishing twice makes one event while the log remembers ids, and a
projection skips what it has seen of an entity (`version`, `n`). Nothing here knows what an entity means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import structlog

from app.core.errors import Conflict, Missing, Unavailable
from app.services.workspace_log import Happening, WorkspaceLog
from app.store import puts
from app.store.contract import Absent, PreconditionFailed, Store, StoreError

Document = dict[str, Any]
Change = Callable[[Document], tuple[Document, Sequence[Happening]] | None]

READERS = 16

logger = structlog.get_logger(__name__)


class Stored(NamedTuple):
    """An entity as it was read: the document without what is ours, and its version."""

    doc: Document
    version: int


class Entities:
    """Reads and changes entities of all kinds; keys come from `app/store/keys.py`."""

    def __init__(self, store: Store, log: WorkspaceLog) -> None:
        self._store, self._log = store, log
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="entities")

    def create(self, tenant: str, key: str, doc: Document, happenings: Sequence[Happening]) -> Document:
        """Creates the entity and publishes. Raises Conflict if there is one at `key`."""
        whole = {**doc, "version": 1, "outbox": _outbox(key, 1, happenings)}
        try:
            made, _ = puts.create_json(self._store, key, whole)
        except PreconditionFailed:
            raise Conflict("it exists already") from None
        self._publish(tenant, key, made)
        return _plain(made)

    def change(self, tenant: str, key: str, how: Change) -> Document:
        """Changes the entity by CAS: `how` gives the new document and what happened, or None to leave it; decided on each newer version.

        Gives the document that resulted. Raises Missing, Unavailable, and what `how` raises.
        """

        def whole(doc: Document) -> Document | None:
            changed = how(_plain(doc))
            if changed is None:
                return None
            version = doc["version"] + 1
            new, happenings = changed
            return {**new, "version": version, "outbox": [*doc["outbox"], *_outbox(key, version, happenings)]}

        try:
            made, _ = puts.update_json(self._store, key, whole)
        except Absent:
            raise Missing("no such object") from None
        self._publish(tenant, key, made)
        return _plain(made)

    def ensure(self, tenant: str, key: str, new: Document, how: Change) -> Document:
        """`change`, on `new` if there is no entity yet. Raises as they do."""
        try:
            return self.change(tenant, key, how)
        except Missing:
            changed = how(new)
            assert changed is not None
        try:
            return self.create(tenant, key, *changed)
        except Conflict:
            return self.change(tenant, key, how)

    def get(self, tenant: str, key: str, what: str) -> Document:
        """The document. Raises Missing, saying that there is no such `what`."""
        try:
            doc, _ = puts.read_json(self._store, key)
        except (Absent, ValueError):
            raise Missing(f"no such {what}") from None
        except StoreError as e:
            raise Unavailable("the object store can't be read") from e
        if doc["outbox"]:
            self._publish(tenant, key, doc)
        return _plain(doc)

    def many(self, tenant: str, keys: Sequence[str]) -> list[Document]:
        """The documents at `keys`, in that order, without those that aren't there."""

        def one(key: str) -> Document | None:
            try:
                return self.get(tenant, key, "object")
            except Missing:
                return None

        return [doc for doc in self._pool.map(one, keys) if doc is not None]

    def names(self, prefix: str) -> Iterator[str]:
        """Names of the immediate children of `prefix`, ascending."""
        after = ""
        while page := self._store.list_dirs(prefix, start_after=after):
            yield from page
            after = page[-1]

    def listed(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix`, ascending."""
        out: list[str] = []
        while page := self._store.list(prefix, start_after=out[-1] if out else ""):
            out += page
        return out

    def mark(self, key: str) -> None:
        """Puts an empty object: a marker for listings."""
        self._store.put(key, b"{}")

    def _publish(self, tenant: str, key: str, doc: Document) -> None:
        waiting: list[Document] = doc["outbox"]
        if not waiting:
            return
        try:
            self._log.publish(tenant, waiting)
        except Unavailable:
            # the change itself is made and kept: whoever reads it next publishes
            logger.warning("events of a change wait in its outbox", object=key)
            return
        done = {e["id"] for e in waiting}

        def emptied(now: Document) -> Document | None:
            left = [e for e in now["outbox"] if e["id"] not in done]
            return {**now, "outbox": left} if len(left) != len(now["outbox"]) else None

        self._pool.submit(self._empty, key, emptied)

    def _empty(self, key: str, emptied: Callable[[Document], Document | None]) -> None:
        try:
            puts.update_json(self._store, key, emptied)
        except (Absent, Unavailable, StoreError):
            # published twice does no harm
            logger.info("outbox not emptied", object=key)


def _outbox(key: str, version: int, happenings: Sequence[Happening]) -> list[Document]:
    return [
        {
            "id": hashlib.sha256(f"{key} {version} {n}".encode()).hexdigest()[:32],
            "kind": h.kind,
            "time": h.time,
            "data": {**h.data, "entity": key, "version": version, "n": n},
        }
        for n, h in enumerate(happenings)
    ]


def _plain(doc: Document) -> Document:
    return {name: value for name, value in doc.items() if name not in ("version", "outbox", puts.TRACE_FIELD)}
