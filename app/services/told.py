"""How a message to an agent shows in the workspace log: the same events whoever tells of it.

Whoever has taken a message tells of it; the worker that begins its turn does so too, if the message is young, so that no turn is seen to
begin before what it answers. The log knows ids for at least a minute, so what is told twice in that time is there once.
"""

from __future__ import annotations

import hashlib
from typing import Any

from app.core import ids

YOUNG_MS = 45_000
Document = dict[str, Any]
PAYLOAD = ("text", "head", "images", "model", "answers", "purpose")


def told(about: Document, session: str, event: Document) -> list[Document]:
    """What to publish of a `user.message` of a session: events with `id`, `kind`, `time`, `data`. `about` has project_id and task_id."""
    data = event["data"]
    payload = {"head": "", **{name: data[name] for name in PAYLOAD if name in data}}
    common = {"project_id": about["project_id"], "task_id": about["task_id"], "agent_session_id": session}
    return [
        {
            "id": event["id"],
            "kind": "user.message",
            "time": event["time"],
            "data": {**common, "actor": data.get("actor", "byre"), "payload": payload},
        },
        {
            "id": hashlib.sha256(f"{event['id']} queued".encode()).hexdigest()[:32],
            "kind": "session.state",
            "time": event["time"],
            "data": {**common, "actor": "byre", "payload": {"state": "queued"}},
        },
    ]


def young(event: Document, now: float) -> bool:
    """Whether a message may still be told of by more than one. `now` is in seconds since 1970."""
    return now * 1000 - ids.time_ms(event["id"]) < YOUNG_MS
