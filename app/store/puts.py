"""Conditional writes that survive a lost answer.

A PUT whose answer was lost may have happened, and may still happen. So every conditional write carries a *put-id* that nobody
else has; it is sent again with the same bytes under the same condition; and when the store then says that the condition is
false, the object is asked whose put made it: ours means that we have won.

Rules: nothing is concluded from an absent object; everything is bounded by one deadline, after which the write stays *unknown*
and `Unavailable` is raised; waits grow and are jittered.

What a put-id can't tell: whether our write landed and was then replaced by somebody else's. For objects that are created
once this can't happen. For documents changed by CAS, the latest put-ids are kept inside the document, which settles it, and
which makes each version's bytes (and so its etag) unique: a late write never meets a condition that came back.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from app.core.errors import Corrupt, Unavailable
from app.store.contract import Absent, PreconditionFailed, Raced, Store, StoreError

log = structlog.get_logger(__name__)

FIRST_WAIT = 0.02  # seconds; doubled each time
LONGEST_WAIT = 1.0  # seconds
TRACE_FIELD = "put_ids"
TRACE_LENGTH = 16  # writers that would have to overtake us within one deadline before we lose sight of our own write


@dataclass(frozen=True)
class Pace:
    """Time and chance, so that a simulation can supply its own. `now` in seconds from any start; `token` makes a put-id."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    token: Callable[[], str] = lambda: secrets.token_hex(16)


REAL = Pace()


def put_once(
    store: Store,
    key: str,
    body: bytes,
    *,
    if_none_match: bool = False,
    if_match: str | None = None,
    put_id: str | None = None,
    deadline_seconds: float = 10,
    pace: Pace = REAL,
) -> str:
    """Write `body` under exactly one condition and give its etag, whatever happens to single answers.

    Raises PreconditionFailed if somebody else's write decided the condition, Unavailable if nothing was settled in time: then
    the write may have landed or may still land, and only the same `put_id` and `body` may be tried again.
    """
    if if_none_match == (if_match is not None):
        raise ValueError("put_once needs exactly one condition")
    mine = put_id or pace.token()
    attempts = _Attempts(key, deadline_seconds, pace)
    while True:
        try:
            return store.put(key, body, if_none_match=if_none_match, if_match=if_match, put_id=mine)
        except PreconditionFailed:
            etag = _whose(store, key, mine, attempts, replacing=if_match is not None)
            if etag is not None:
                return etag
            attempts.again("refused, but the object is not there")
        except Raced:
            attempts.again("writes raced")
        except StoreError as error:
            attempts.again(str(error), lasting=error.lasting)


def _whose(store: Store, key: str, mine: str, attempts: _Attempts, *, replacing: bool) -> str | None:
    """After a 412: the etag if the object is `mine`, None if it is absent and creating it may be tried again.

    Raises PreconditionFailed if it is another's, or if what was to be replaced is gone.
    """
    while True:
        try:
            head = store.head(key)
        except Absent:
            if replacing:
                raise PreconditionFailed(key) from None
            return None
        except StoreError as error:
            attempts.again(str(error), lasting=error.lasting)
            continue
        if head.put_id == mine:
            return head.etag
        raise PreconditionFailed(key)


class _Attempts:
    """The bound on one write: waits between attempts, and gives up at the deadline."""

    def __init__(self, key: str, seconds: float, pace: Pace) -> None:
        self._key, self._pace = key, pace
        self._deadline = pace.now() + seconds
        self._wait = FIRST_WAIT

    def again(self, reason: str, *, lasting: bool = False) -> None:
        """Wait before the next attempt. Raises Unavailable if there is no time for one."""
        pause = self._wait * (0.5 + self._pace.random())
        if lasting or self._pace.now() + pause >= self._deadline:
            log.warning("store.write_unsettled", key=self._key, reason=reason)
            raise Unavailable("the object store did not settle a write in time")
        self._pace.sleep(pause)
        self._wait = min(self._wait * 2, LONGEST_WAIT)


def read_json(store: Store, key: str) -> tuple[dict[str, Any], str]:
    """The JSON object at `key` and its etag. Raises Absent, StoreError, and Corrupt if it is no JSON object."""
    got = store.get(key)
    return parse_json(key, got.body), got.etag


def parse_json(key: str, body: bytes) -> dict[str, Any]:
    """`body`, read at `key`, as a JSON object. Raises Corrupt."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise Corrupt("a stored object is not valid JSON", key)
    return document


def create_json(
    store: Store, key: str, document: dict[str, Any], *, deadline_seconds: float = 10, pace: Pace = REAL
) -> tuple[dict[str, Any], str | None]:
    """Create `document` at `key`. Gives and raises as `swap_json` does."""
    return _write_json(store, key, document, None, deadline_seconds, pace)


def swap_json(
    store: Store, key: str, document: dict[str, Any], etag: str, *, deadline_seconds: float = 10, pace: Pace = REAL
) -> tuple[dict[str, Any], str | None]:
    """Replace the version `etag` of `key` by `document` (that version, changed; its `put_ids` must still be in it).

    Gives what is stored, and its etag: None if our version landed and others have replaced it since. Raises
    PreconditionFailed if our version never was there, Unavailable if that isn't known.
    """
    return _write_json(store, key, document, etag, deadline_seconds, pace)


def _write_json(
    store: Store, key: str, document: dict[str, Any], etag: str | None, seconds: float, pace: Pace
) -> tuple[dict[str, Any], str | None]:
    put_id = pace.token()
    made = {**document, TRACE_FIELD: [*document.get(TRACE_FIELD, []), put_id][-TRACE_LENGTH:]}
    body = orjson.dumps(made)
    started = pace.now()
    try:
        return made, put_once(
            store,
            key,
            body,
            if_none_match=etag is None,
            if_match=etag,
            put_id=put_id,
            deadline_seconds=seconds,
            pace=pace,
        )
    except PreconditionFailed:
        if put_id in _trace(store, key, _Attempts(key, seconds - (pace.now() - started), pace)):
            return made, None
        raise


def update_json(
    store: Store,
    key: str,
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
    *,
    deadline_seconds: float = 10,
    pace: Pace = REAL,
) -> tuple[dict[str, Any], str | None]:
    """Change the document at `key` by compare-and-swap, deciding again on each newer version.

    `change` gets the document as it is and gives the new one, or None to leave it; it may be called several times and must
    not modify its argument. Gives the document that resulted and its etag (None: ours landed and was replaced since). Raises
    Absent, Corrupt, and Unavailable when others kept winning or nothing was settled until the deadline.
    """
    started = pace.now()
    attempts = _Attempts(key, deadline_seconds, pace)
    while True:
        document, etag = _read(store, key, attempts)
        changed = change(document)
        if changed is None:
            return document, etag
        try:
            left = max(0.0, deadline_seconds - (pace.now() - started))
            traced = {**changed, TRACE_FIELD: document.get(TRACE_FIELD, [])}
            return _write_json(store, key, traced, etag, left, pace)
        except PreconditionFailed:
            attempts.again("others changed it first")


def _read(store: Store, key: str, attempts: _Attempts) -> tuple[dict[str, Any], str]:
    while True:
        try:
            return read_json(store, key)
        except StoreError as error:
            attempts.again(str(error), lasting=error.lasting)


def _trace(store: Store, key: str, attempts: _Attempts) -> list[str]:
    try:
        document, _ = _read(store, key, attempts)
    except Absent:
        return []
    trace = document.get(TRACE_FIELD, [])
    return trace if isinstance(trace, list) else []
