"""The ledger of Web Push: for each inbox item whom it was to be told, on which device, and what became of it.

A row is `due` (to be sent, or being sent), `sent`, `suppressed` (with why), `failed` or `gone`. Whoever sends takes the rows that are due
by CAS first: it counts the attempt and sets the time until which nobody else touches them.

Rules: a row is taken before it is sent and settled after, so after a crash in between it is sent once more, with the same topic, and never
not at all. A device is told of what is newer than its subscription. Nothing of a device but its hash stands here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from app.core.errors import Missing, Unavailable
from app.push import rules
from app.push.rules import Manner
from app.push.sender import Device, Result
from app.services.entities import Entities
from app.services.push_devices import PushDevices
from app.services.users import Users
from app.store import keys
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, read_json, swap_json, update_json

ROUND_SECONDS = 90.0
"""How long whoever took rows has them to itself: more than sending `AT_ONCE` of them can take."""
AT_ONCE = 64
MOST_ROWS = 2000
"""Devices that are told of one item."""
Document = dict[str, Any]
Table = dict[str, Document]


class Round(NamedTuple):
    """What one worker sends of one item now. Without devices: `wait` says in how many seconds to ask again, None that all is done."""

    devices: Mapping[str, Device]
    message: bytes
    manner: Manner
    topic: str
    wait: float | None


class PushLedger:
    """The ledgers of all tenants. `may_tell` counts and bounds what one user is told; `clock` gives Unix seconds."""

    def __init__(
        self,
        store: Store,
        entities: Entities,
        users: Users,
        devices: PushDevices,
        may_tell: Callable[[str, str, str], bool],
        public_url: str,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store, self._entities, self._users, self._devices = store, entities, users, devices
        self._may_tell, self._url, self._clock, self._chance = may_tell, public_url.rstrip("/"), clock, chance

    def begin(self, tenant: str, item_id: str) -> Round:
        """Takes what is due of an item. Raises Unavailable, Corrupt."""
        try:
            item = self._entities.get(tenant, keys.inbox(tenant, item_id), "inbox item")
        except Missing:
            return _over()
        try:
            doc, etag = read_json(self._store, keys.push_ledger(tenant, item_id))
        except Absent:
            return self._first(tenant, item)
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error
        return self._next(tenant, item, doc, etag)

    def settle(self, tenant: str, item_id: str, results: Mapping[str, Result]) -> float | None:
        """Notes what became of the rows that were taken; gives the seconds until more is due, None if all is done. Raises Unavailable."""
        now = self._clock()

        def change(doc: Document) -> Document:
            rows = dict(doc["rows"])
            for device, result in results.items():
                if rows[device]["state"] == "due":
                    rows[device] = self._settled(rows[device], result, now)
            return {**doc, "rows": rows}

        doc, _ = update_json(self._store, keys.push_ledger(tenant, item_id), change)
        return _wait(doc["rows"], now)

    def read(self, tenant: str, item_id: str) -> Table:
        """The rows of an item, by the hash of the device. Raises Missing, Unavailable."""
        try:
            rows: Table = read_json(self._store, keys.push_ledger(tenant, item_id))[0]["rows"]
        except Absent:
            raise Missing("nobody was to be told of this item") from None
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error
        return rows

    def stray(self, tenant: str) -> Iterator[str]:
        """Items that are open, of a tenant that somebody has a device in: those that may have been missed are among them."""
        if self._devices.any(tenant):
            for key in self._entities.listed(keys.inbox_open_prefix(tenant)):
                yield keys.last_part(key)

    def _first(self, tenant: str, item: Document) -> Round:
        if not self._devices.any(tenant):
            return _over()
        now = self._clock()
        devices = self._devices.of_tenant(tenant)[:MOST_ROWS]
        rows: Table = {}
        taken: dict[str, Device] = {}
        told: dict[str, str] = {}
        for device in devices:
            if device.created_at > item["created_at"]:
                continue
            if device.login not in told:
                told[device.login] = self._why_not(tenant, device.login, item, now)
            if told[device.login]:
                rows[device.id] = _row(device.login, "suppressed", told[device.login], now)
            elif len(taken) < AT_ONCE:
                rows[device.id] = {**_row(device.login, "due", "", now), "attempts": 1, "next": now + ROUND_SECONDS}
                taken[device.id] = device
            else:
                rows[device.id] = {**_row(device.login, "due", "", now), "next": now}
        doc = {"item": item["id"], "rows": rows}
        try:
            create_json(self._store, keys.push_ledger(tenant, item["id"]), doc)
        except PreconditionFailed:
            return _over(ROUND_SECONDS)  # another worker has it
        return self._round(tenant, item, taken, rows, now)

    def _why_not(self, tenant: str, login: str, item: Document, now: float) -> str:
        """Why a user isn't told; empty if they are."""
        if not self._users.get(tenant, login)["notification_prefs"][rules.preference(item)]:
            return "the user's preferences"
        if now - _unix(item["created_at"]) > rules.OLDEST_SECONDS:
            return "too old"
        if item["state"] != "open":
            return f"the item is {item['state']}"
        return "" if self._may_tell(tenant, login, item["id"]) else "too many in a minute"

    def _next(self, tenant: str, item: Document, doc: Document, etag: str) -> Round:
        now = self._clock()
        rows: Table = dict(doc["rows"])
        taken: dict[str, Device] = {}
        for sha, row in doc["rows"].items():
            if row["state"] != "due" or row["next"] > now or len(taken) >= AT_ONCE:
                continue
            if item["state"] != "open":
                rows[sha] = {
                    **_row(row["login"], "suppressed", f"the item is {item['state']}", now),
                    "attempts": row["attempts"],
                }
            elif row["attempts"] >= rules.ATTEMPTS:
                rows[sha] = {**row, "state": "failed", "at": now, "why": "it isn't known whether it was sent"}
            elif (device := self._devices.get(tenant, row["login"], sha)) is None:
                rows[sha] = {**row, "state": "gone", "at": now, "why": "the subscription has ended"}
            else:
                rows[sha] = {**row, "attempts": row["attempts"] + 1, "at": now, "next": now + ROUND_SECONDS}
                taken[sha] = device
        if rows == doc["rows"]:
            return _over(_wait(rows, now))
        try:
            swap_json(self._store, keys.push_ledger(tenant, item["id"]), {**doc, "rows": rows}, etag)
        except PreconditionFailed:
            return _over(ROUND_SECONDS)
        return self._round(tenant, item, taken, rows, now)

    def _round(self, tenant: str, item: Document, taken: dict[str, Device], rows: Table, now: float) -> Round:
        if not taken:
            return _over(_wait(rows, now))
        try:
            title = self._entities.get(tenant, keys.task(tenant, item["task_id"]), "task")["title"]
        except Missing:
            title = ""
        message = rules.message(item, title, f"{self._url}/inbox/{item['id']}")
        return Round(taken, message, rules.MANNERS[item["priority"]], rules.topic(item), _wait(rows, now))

    def _settled(self, row: Document, result: Result, now: float) -> Document:
        done = {**row, "at": now, "why": result.why}
        if result.outcome != "retry":
            return {**done, "state": result.outcome}
        if row["attempts"] >= rules.ATTEMPTS:
            return {**done, "state": "failed"}
        return {**done, "next": now + rules.wait(row["attempts"], result.retry_after, self._chance())}


def _over(wait: float | None = None) -> Round:
    return Round({}, b"", rules.MANNERS["fyi"], "", wait)


def _row(login: str, state: str, why: str, now: float) -> Document:
    return {"login": login, "state": state, "why": why, "attempts": 0, "at": now}


def _wait(rows: Table, now: float) -> float | None:
    due = [row["next"] for row in rows.values() if row["state"] == "due"]
    return max(0.0, min(due) - now) if due else None


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
