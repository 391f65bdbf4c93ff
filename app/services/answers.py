"""Answers to inbox items: one or several in one submission, all of them or none.

One item is settled by its own CAS. For several, each is first claimed by the submission, in the order of their ids; then the submission is
put as *given*, which is the moment that counts; then each item is settled, by us or by whoever reads it next. A claim of a
submission that never came to that point is broken after `CLAIM_SECONDS`, by putting it as not given.

Rules: everything is checked before anything is written; of those who answer one item at once one wins, and the others get Conflict.
"""

from __future__ import annotations

from typing import Any

from app.core import inbox as rules
from app.core.errors import Conflict, Invalid
from app.core.principal import Principal
from app.services.inbox import Inbox, Settled, answered, shown
from app.services.turns import Turns
from app.services.writer import Clock
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.puts import create_json

MOST = 50
CLAIM_SECONDS = 20.0
"""Longer than a submission takes from its first claim to its point."""
Document = dict[str, Any]
Documents = list[Document]


class Answers:
    """Takes answers of people."""

    def __init__(self, store: Store, inbox: Inbox, turns: Turns, clock: Clock) -> None:
        self._store, self._inbox, self._turns, self._clock = store, inbox, turns, clock

    def respond(self, principal: Principal, body: Document) -> Documents:
        """The contract's items after a submission. Raises Invalid, Missing, Conflict, Unavailable."""
        given: Documents = body["responses"]
        if len(given) > MOST:
            raise Invalid(f"responses: at most {MOST}", "responses")
        if len({one["item_id"] for one in given}) != len(given):
            raise Invalid("responses: an item is there twice", "responses")
        items = [self._inbox.record(principal.tenant, one["item_id"]) for one in given]
        for i, (item, one) in enumerate(zip(items, given, strict=True)):
            rules.check_response(item, one, f"responses[{i}]")
        made = {one["item_id"]: self._made(principal, one) for one in given}
        self._mark(principal.tenant, items)
        if len(made) == 1:
            settled = [self._settle(principal.tenant, item["id"], made[item["id"]]) for item in items]
        else:
            settled = self._all(principal.tenant, items, made)
        # again, for a worker may have found nothing to be owed in between
        self._mark(principal.tenant, items)
        self._poke(principal.tenant, items)
        return [shown(item) for item in settled]

    def _made(self, principal: Principal, given: Document) -> Document:
        response: Document = {
            "id": self._clock.id(),
            "item_id": given["item_id"],
            "user": principal.login or "",
            "type": given["type"],
            "attachments": list(given.get("attachments", [])) if given["type"] != "dismiss" else [],
            "created_at": self._clock.text(),
        }
        if given["type"] == "option":
            response["options"] = list(given["options"])
        if given.get("text", "").strip() and given["type"] != "dismiss":
            response["text"] = given["text"]
        return response

    def _settle(self, tenant: str, item: str, response: Document) -> Document:
        def settle(doc: Document) -> Settled:
            self._check_claim(tenant, doc, "")
            return answered(doc, response)

        return self._inbox.change(tenant, item, settle)

    def _all(self, tenant: str, items: Documents, made: dict[str, Document]) -> Documents:
        submission = self._clock.id()
        claimed: list[str] = []
        try:
            for item in sorted(items, key=lambda each: str(each["id"])):
                self._claim(tenant, item["id"], submission)
                claimed.append(item["id"])
            create_json(self._store, keys.submission(tenant, submission), {"given": True, "responses": made})
        except (Conflict, PreconditionFailed):
            # ours was too slow and was broken, or an item was settled meanwhile: the rest is free again
            for item_id in claimed:
                self._free(tenant, item_id, submission)
            raise Conflict("an item was settled or is being answered by another; nothing was answered") from None
        return [self._inbox.record(tenant, item["id"]) for item in items]

    def _claim(self, tenant: str, item: str, submission: str) -> None:
        def claim(doc: Document) -> Settled:
            rules.step(doc["state"], "dismiss")
            self._check_claim(tenant, doc, submission)
            return {**doc, "claim": {"submission": submission, "at": self._clock.now()}}, ()

        self._inbox.change(tenant, item, claim)

    def _check_claim(self, tenant: str, doc: Document, submission: str) -> None:
        """Raises Conflict while the item is claimed by another submission; breaks a claim that is too old."""
        claim = doc.get("claim")
        if claim is None or claim["submission"] == submission or doc["state"] != "open":
            return
        if self._clock.now() - claim["at"] > CLAIM_SECONDS and self._inbox.break_claim(tenant, doc) is None:
            return
        raise Conflict("the item is being answered by another")

    def _free(self, tenant: str, item: str, submission: str) -> None:
        def free(doc: Document) -> Settled | None:
            if doc.get("claim", {}).get("submission") != submission or doc["state"] != "open":
                return None
            return {name: value for name, value in doc.items() if name != "claim"}, ()

        self._inbox.change(tenant, item, free)

    def _mark(self, tenant: str, items: Documents) -> None:
        for task in dict.fromkeys(item["task_id"] for item in items):
            self._turns.owe(tenant, task)

    def _poke(self, tenant: str, items: Documents) -> None:
        for task in dict.fromkeys(item["task_id"] for item in items):
            self._turns.poke(tenant, task)
