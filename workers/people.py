"""The human half of byre on a worker, put together: tools with which agents turn to people, and what follows from what they do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import structlog

from app.coord.coord import Coord
from app.coord.owed import Owed
from app.coord.requests import Requests
from app.core import inbox as rules
from app.core.cursor import Position
from app.core.errors import ByreError, Unavailable
from app.log.log import Log
from app.services.blobs import Blobs
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.inputs import Inputs
from app.services.restoring import Restoring
from app.services.turns import Turns
from app.services.users import Users
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock, Writer
from app.store import keys
from app.store.keys import LogName
from workers.byre_tools import ByreTools
from workers.delivery import Deliveries
from workers.ending import Endings, limit_id
from workers.follow import Follower, Followups
from workers.harness.base import Image, ToolCall
from workers.landing import Landing
from workers.merging import Merger
from workers.mirror import Mirror
from workers.tasks import TaskWork

MOST_WAITING = 100
"""Messages that may wait in a session: byre gives one at a time."""
Document = dict[str, Any]
MakeMirror = Callable[[LogName, Document], Mirror]

logger = structlog.get_logger(__name__)


class People(Protocol):
    """What the runner of a session in a task's worktree needs of it."""

    def images(self, tenant: str, ids: Sequence[str]) -> tuple[Image, ...]: ...

    def asked(self, name: LogName, task: str, call: ToolCall) -> None: ...

    def limited(self, name: LogName, task: str, turn: str, data: Document) -> None: ...

    def ended(self, tenant: str, task: str) -> None: ...


class PeopleHalf:
    """Parts of one worker. `folder` is for its locks; `failed` is called if its thread dies."""

    def __init__(
        self,
        log: Log,
        coord: Coord,
        owed: Owed,
        requests: Requests,
        work: TaskWork,
        mirror: MakeMirror,
        *,
        vendor: str,
        grace_ms: int,
        folder: Path,
        failed: Callable[[], None],
    ) -> None:
        clock = Clock()
        workspace = WorkspaceLog(log)
        entities = Entities(log.store, workspace)
        writer = Writer(log, clock)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="inputs")
        inputs = Inputs(writer, self._pool, frozenset(), MOST_WAITING)
        restoring = Restoring(writer, grace_ms)
        inbox, users = Inbox(log.store, entities, clock), Users(entities)
        turns = Turns(log.store, entities, log, workspace, inputs, restoring, requests, owed, clock, vendor)

        def head(tenant: str, task: Document) -> str:
            project = entities.get(tenant, keys.project(tenant, task["project_id"]), "project")
            return work.head({"project": {**project, "tenant": tenant}, "task": {**task, "tenant": tenant}})

        def shown(name: LogName, about: Document, place: Position) -> None:
            made = mirror(name, about)
            look = coord.look(name.text)
            if made.reached(place):
                return
            if look and look.worker:
                raise Unavailable("whoever has the session hasn't shown the end of its turn yet")
            made.open()
            made.catch_up()
            made.archive()

        merger = Merger(work, entities, inbox, turns, users, Landing(work, turns, clock), clock)
        endings = Endings(entities, inbox, turns, clock, head, shown)
        deliveries = Deliveries(entities, inbox, turns, users, clock, head)
        follower = Follower(entities, inbox, turns, endings, deliveries, merger, requests, log.store, work.places.host, folder)
        self._entities, self._inbox, self._blobs = entities, inbox, Blobs(log.store, clock)
        self.tools = ByreTools(entities, inbox, workspace, clock)
        self.followups = Followups(follower, turns, coord, log.store, failed)
        self.handlers: dict[str, Callable[[Document], Any]] = {
            "task.follow": self.followups.handle,
            "task.target": merger.target,
        }

    def close(self) -> None:
        """Ends its threads."""
        self.followups.close()
        self._pool.shutdown(wait=True)

    def images(self, tenant: str, ids: Sequence[str]) -> tuple[Image, ...]:
        """The images that go with a message, as far as they can be read."""
        found: list[Image] = []
        for blob in ids:
            try:
                image = self._blobs.read(tenant, blob)
            except ByreError as error:
                logger.warning("an image of a message can't be read", blob=blob, why=error.message)
                continue
            found.append(Image(image.media_type, image.body))
        return tuple(found)

    def asked(self, name: LogName, task: str, call: ToolCall) -> None:
        """The agent calls a tool of its own program: if that is a question, people get it, and the answer is the next message."""
        assert name.session
        payloads = rules.own_questions(call.name, call.arguments)
        try:
            for n, payload in enumerate(payloads):
                record = self._entities.get(name.tenant, keys.task_session(name.tenant, task, name.session), "session")
                item = hashlib.sha256(f"{name.session} {call.id} {n}".encode()).hexdigest()[:32]
                self._inbox.create(name.tenant, record, "question", payload, item, blocking=True)
        except ByreError as error:
            logger.warning("a question of an agent didn't become an inbox item", session=name.session, why=error.message)

    def limited(self, name: LogName, task: str, turn: str, data: Document) -> None:
        """A vendor's limit parks a turn: people are told, and need do nothing. Raises Unavailable."""
        assert name.session
        record = self._entities.get(name.tenant, keys.task_session(name.tenant, task, name.session), "session")
        about: Document = {
            "status": "rejected",
            **{field: data[field] for field in ("reset_at", "reset_ms", "retry_after") if field in data},
        }
        payload = {"vendor": record["vendor"], "rate_limit": about, "error": data["detail"]}
        self._inbox.create(name.tenant, record, "rate_limited", payload, limit_id(turn))

    def ended(self, tenant: str, task: str) -> None:
        """A turn of the task has been settled."""
        self.followups.poke(tenant, task)
