"""A byre session's events, mirrored into its tenant's workspace log.

Rules: in the order of the session's log, each event once. The place up to which it is mirrored is remembered in Redis as a hint;
whoever takes the session over looks through what was appended to the workspace log after the hint, so a crash in between repeats
nothing and skips nothing. What people said (`user.message`) is published by whoever accepted it, and once more here while it is young,
so that it comes before the turn that it starts.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import redis
import structlog

from app.coord.board import note_limit
from app.core import chain as chains
from app.core.cursor import START, Position
from app.core.errors import Unavailable
from app.log import events
from app.log.log import Entry, Log
from app.services.told import told, young
from app.services.workspace_log import WorkspaceLog
from app.store.keys import LogName

PAGE = 500
ARCHIVE_SECONDS = 10.0
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Mirror:
    """Of one session while it is leased here. Used by its runner's thread only."""

    def __init__(
        self, client: redis.Redis, prefix: str, log: Log, workspace: WorkspaceLog, name: LogName, about: Document
    ) -> None:
        self._redis, self._log, self._workspace, self._name = client, log, workspace, name
        self._about, self._vendor = about, log.head(name).vendor
        self._prefix = prefix
        self._key = "{" + prefix + "}:mirror:" + name.text
        self._at = START
        self._archived = time.monotonic()
        self.seq = 0
        """The latest `seq` of the session's task that is known here."""

    def open(self) -> None:
        """Finds out how far the session is mirrored. Raises Unavailable."""
        try:
            hint = self._redis.get(self._key)
        except redis.RedisError as error:
            raise Unavailable("Redis can't be reached") from error
        seq = 0
        if isinstance(hint, bytes):
            gen, offset, seq = map(int, hint.split())
            self._at = Position(gen, offset)
        needle = f'"agent_session_id":"{self._name.session}"'.encode()
        while page := self._workspace.page(self._name.tenant, seq, PAGE):
            for entry in page:
                seq = entry.position.offset + 1
                if needle in entry.raw:
                    self.seq = seq
                    place = events.parse(entry.raw)["data"].get("place")
                    if place:
                        self._at = max(self._at, Position(*place))
        view = self._log.view(self._name)
        chain, upto = self._log.head(self._name, view.gen).chain, view.next
        if self._at != START and not chains.covers(chain, self._at, upto):
            # what was shown after it is lost, and stays shown
            good = chains.last_good(chain, self._at)
            self._at = good if good.offset < upto else chains.at(chain, upto - 1)

    def catch_up(self) -> None:
        """Mirrors what was appended to the session's log since. Raises Unavailable."""
        while True:
            page = self._log.read(self._name, self._at, PAGE)
            batch: list[tuple[str, bytes]] = []
            for entry in page.entries:
                if events.kind_of(entry.raw) == "user.message":
                    self._append(batch)
                    self._tell(events.parse(entry.raw))
                    batch = []
                else:
                    batch += self._mirrored(entry)
            self._append(batch)
            if page.entries:
                self._at = page.entries[-1].position
                self._remember()
            if page.end or not page.entries:
                break
        if time.monotonic() - self._archived > ARCHIVE_SECONDS:
            self.archive()

    def reached(self, position: Position) -> bool:
        """Whether the session is mirrored up to a place, by whoever does that. Raises Unavailable."""
        try:
            hint = self._redis.get(self._key)
        except redis.RedisError as error:
            raise Unavailable("Redis can't be reached") from error
        return isinstance(hint, bytes) and Position(*map(int, hint.split()[:2])) >= position

    def _append(self, batch: list[tuple[str, bytes]]) -> None:
        if batch:
            first = self._workspace.append(self._name.tenant, batch)
            self.seq = max(self.seq, first + len(batch) - 1)

    def _tell(self, message: Document) -> None:
        if young(message, time.time()):
            for event in told(self._about, self._name.session or "", message):
                self._append([(event["id"], events.line(event["kind"], event["id"], event["time"], event["data"]))])

    def archive(self) -> None:
        """Archives the workspace log. Raises Unavailable."""
        self._archived = time.monotonic()
        self._log.archive(LogName(self._name.tenant, None))

    def _remember(self) -> None:
        try:
            self._redis.set(self._key, f"{self._at.gen} {self._at.offset} {self.seq}", ex=7 * 86400)
        except redis.RedisError:
            logger.debug("mirror hint not kept")

    def _mirrored(self, entry: Entry) -> list[tuple[str, bytes]]:
        e = events.parse(entry.raw)
        out: list[tuple[str, bytes]] = []
        for n, (kind, payload) in enumerate(shown(e["type"], e["data"], self._vendor)):
            if kind == "rate_limit":
                note_limit(self._redis, self._prefix, self._name.tenant, self._vendor, {**payload, "at": e["time"]})
            data = {
                "project_id": self._about["project_id"],
                "task_id": self._about["task_id"],
                "agent_session_id": self._name.session,
                "actor": "agent" if kind.startswith("agent.") else "byre",
                "payload": payload,
                "place": list(entry.position),
            }
            event_id = hashlib.sha256(f"{self._name.session} {e['id']}{f' {n}' if n else ''}".encode()).hexdigest()[:32]
            out.append((event_id, events.line(kind, event_id, e["time"], data)))
        return out


def shown(kind: str, data: Document, vendor: str) -> list[tuple[str, Document]]:
    """How byre shows an event of a session: kinds and payloads; empty if it doesn't."""
    turn = {"turn": data["turn"]} if "turn" in data else {}
    match kind:
        case "assistant.message":
            return [("agent.text", {**turn, "text": data["text"]})]
        case "assistant.thinking":
            return [("agent.thinking", {**turn, "text": data["text"]})]
        case "tool.call":
            return [("agent.tool_call", {**turn, "id": data["id"], "name": data["name"], "arguments": data["arguments"]})]
        case "tool.result":
            return [("agent.tool_result", {**turn, "call_id": data["call_id"], "result": data["result"]})]
        case "turn.started":
            about: Document = {name: data[name] for name in ("model", "purpose") if data.get(name)}
            return [("turn.started", {**turn, **about}), ("session.state", {"state": "running"})]
        case "turn.completed":
            used: Document = {name: data[name] for name in ("usage", "cost_usd", "duration_ms") if name in data}
            return [("turn.ended", {**turn, "outcome": "completed", **used})]
        case "turn.interrupted":
            return [("turn.ended", {**turn, "outcome": "interrupted", "reason": data["reason"]})]
        case "turn.failed":
            return [("turn.ended", {**turn, "outcome": "failed", "code": data["code"], "message": data["message"]})]
        case "rate_limited":
            about = {name: data[name] for name in ("reset_at", "retry_after", "detail") if name in data}
            return [
                ("turn.ended", {**turn, "outcome": "rate_limited"}),
                ("rate_limit", {"vendor": vendor, **about}),
                ("session.state", {"state": "queued", "reason": "rate_limited"}),
            ]
    return []
