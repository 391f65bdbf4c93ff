"""The head object of a log (`session.json`, `workspace.json`): its generation chain, epoch and checkpoint pointer.

Rules: it is changed only by CAS and never deleted. What this module doesn't know (config, descriptors) it carries along.
A log of which an object was found damaged is *frozen*: everybody who loads the head is refused, until a person has put the object
back and `byre check --thaw` has found everything whole. A log that was erased leaves a head that says only that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from app.core.chain import Chain, Generation
from app.core.errors import Corrupt, Missing, Unavailable
from app.store import keys
from app.store.contract import Absent, Store, StoreError
from app.store.keys import LogName
from app.store.puts import REAL, Pace, create_json, parse_json, update_json

READ_TRIES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class LogHead:
    """One version of a head object. `doc` is the whole document."""

    chain: Chain
    epoch: int
    attempts: int
    doc: dict[str, Any]

    @property
    def last(self) -> Generation:
        """The open generation."""
        return self.chain[-1]

    @property
    def vendor(self) -> str:
        """Whose queue the session waits in: its harness; empty for the workspace log."""
        return str(self.doc.get("harness", ""))


def parse(doc: dict[str, Any], key: str = "", *, frozen_too: bool = False) -> LogHead:
    """The head that a document (at `key`) says. Raises Missing for an erased log, Corrupt for a frozen one unless it is asked for."""
    if doc.get("erased"):
        raise Missing("no such session")
    if doc.get("frozen") and not frozen_too:
        raise Corrupt("the session is frozen: an object of it is damaged", doc["frozen"]["object"])
    try:
        return LogHead(tuple(Generation.from_json(g) for g in doc["chain"]), doc["epoch"], doc["attempts"], doc)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise Corrupt("the head object of a log can't be read", key) from e


def fetch(store: Store, key: str, pace: Pace = REAL) -> bytes:
    """An object's body, with a few tries. Raises Absent, and Unavailable if the store fails."""
    for attempt in range(READ_TRIES):
        try:
            return store.get(key).body
        except StoreError as e:
            if attempt == READ_TRIES - 1 or e.lasting:
                raise Unavailable("the object store can't be read") from e
            pace.sleep(0.05 * 2**attempt * (1 + pace.random()))
    raise AssertionError("unreachable")


def load(store: Store, log: LogName, pace: Pace = REAL, *, frozen_too: bool = False) -> LogHead:
    """The head as it is now. Raises Missing, Corrupt, Unavailable."""
    key = keys.head_object(log)
    try:
        return parse(parse_json(key, fetch(store, key, pace)), key, frozen_too=frozen_too)
    except Absent:
        raise Missing("no such session") from None


def create(store: Store, log: LogName, inc: str, doc: dict[str, Any], pace: Pace = REAL) -> LogHead:
    """Creates the head of a new log, bound to incarnation `inc`. Raises PreconditionFailed if there is one."""
    whole = {**doc, "chain": [Generation(0, 0, inc).to_json()], "epoch": 0, "attempts": 0}
    made, _ = create_json(store, keys.head_object(log), whole, pace=pace)
    return parse(made)


def change(
    store: Store, log: LogName, how: Callable[[LogHead], dict[str, Any] | None], pace: Pace = REAL, *, frozen_too: bool = False
) -> LogHead:
    """Changes some fields of the head by CAS; `how` gives them, decided on each newer version, or None to leave it as it is.

    Gives the head that resulted. Raises Missing, Corrupt, Unavailable.
    """

    def whole(doc: dict[str, Any]) -> dict[str, Any] | None:
        fields = how(parse(doc, keys.head_object(log), frozen_too=frozen_too))
        return None if fields is None else {**doc, **fields}

    try:
        made, _ = update_json(store, keys.head_object(log), whole, pace=pace)
    except Absent:
        raise Missing("no such session") from None
    return parse(made, frozen_too=frozen_too)


def freeze(store: Store, log: LogName, damaged: str, pace: Pace = REAL) -> None:
    """Freezes the log because of the object at key `damaged`. Raises Missing, Corrupt, Unavailable."""

    def mark(head: LogHead) -> dict[str, Any] | None:
        return None if head.doc.get("frozen") else {"frozen": {"object": damaged}}

    change(store, log, mark, pace, frozen_too=True)


def thaw(store: Store, log: LogName, pace: Pace = REAL) -> None:
    """The inverse of `freeze`. Raises Missing, Corrupt, Unavailable."""
    change(store, log, lambda head: {"frozen": None} if head.doc.get("frozen") else None, pace, frozen_too=True)
