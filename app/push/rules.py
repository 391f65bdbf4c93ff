"""Rules of Web Push: who is told of an inbox item, how urgently, in which words, and what a push service's answer means.

Rules: nothing here reads a clock or sends anything. A message stays below what every push service takes (4,096 bytes encrypted, RFC 8030
section 7.2). Its topic is the same each time the item is sent, so that a repeat replaces what wasn't delivered yet (RFC 8030 section 5.4).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Document = dict[str, Any]
Outcome = Literal["sent", "gone", "retry", "failed"]

ATTEMPTS = 6
"""Times that a message is sent to one device, a repeat after a crash included."""
OLDEST_SECONDS = 24 * 3600
"""An item that was found later than that isn't told any more."""
LONGEST_WAIT = 3600.0
"""Seconds for which a push service's Retry-After is believed."""
FIRST_WAIT = 5.0
TITLE, BODY = 120, 240
"""Characters. Escaped as JSON each takes at most six bytes."""

_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")
_BLANK = re.compile(r"[\x00-\x20\x7f]+")
_PREFERENCE = {"report": "reports", "session_error": "errors", "rate_limited": "rate_limits"}
_TITLES = {"report": "Report", "session_error": "Something went wrong", "rate_limited": "Rate limit"}


class Manner(NamedTuple):
    """How a message is to be delivered: `urgency` of RFC 8030 section 5.3, `ttl` in seconds."""

    urgency: str
    ttl: int


MANNERS: Mapping[str, Manner] = {
    "blocked": Manner("high", 24 * 3600),
    "gate": Manner("high", 24 * 3600),
    "review": Manner("normal", 12 * 3600),
    "fyi": Manner("low", 4 * 3600),
}
"""By the priority of the item."""


def preference(item: Document) -> str:
    """The switch of a user's notification preferences that an item falls under."""
    if item["kind"] == "question":
        return "blocking_questions" if item["blocking"] else "questions"
    return _PREFERENCE[item["kind"]]


def topic(item: Document) -> str:
    """What replaces what on a device: a question only itself; a report, an error or a limit the last one of its thread."""
    if item["kind"] == "question" and _TOPIC.match(item["id"]):
        return str(item["id"])
    what = item["id"] if item["kind"] == "question" else f"{item['thread_id']} {item['kind']}"
    return hashlib.sha256(what.encode()).hexdigest()[:32]


def message(item: Document, task: str, url: str) -> bytes:
    """The message as JSON: item_id, kind, priority, title, body and url. `task` is the task's title, `url` where the item is shown."""
    payload = item["payload"]
    if item["kind"] == "question":
        head, said = ("Blocked" if item["blocking"] else "Question"), payload.get("question", "")
    else:
        head, said = _TITLES[item["kind"]], payload.get("text") or payload.get("error") or ""
    shown = {
        "item_id": item["id"],
        "kind": item["kind"],
        "priority": item["priority"],
        "title": _cut(f"{head}: {task}" if task else head, TITLE),
        "body": _cut(str(said), BODY),
        "url": url,
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def outcome(status: int) -> Outcome:
    """What an HTTP status of a push service means (RFC 8030 sections 5, 7.3, 8.4)."""
    if 200 <= status < 300:
        return "sent"
    if status in (404, 410):
        return "gone"
    if status == 429 or status >= 500:
        return "retry"
    return "failed"


def wait(attempt: int, retry_after: float | None, chance: float) -> float:
    """Seconds until the next attempt after number `attempt` (from 1) failed; `chance` from 0 to 1 spreads them."""
    own = FIRST_WAIT * 3.0 ** (attempt - 1)
    asked = min(retry_after or 0.0, LONGEST_WAIT)
    return max(own, asked) * (1 + 0.25 * chance)


def _cut(text: str, longest: int) -> str:
    text = _BLANK.sub(" ", text).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"
