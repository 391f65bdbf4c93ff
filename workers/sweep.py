"""The sweep: what no client asks for and nobody else does.

Rules: a session whose lease ran out is taken over like a claim, so its old holder is fenced first; then its open turn is settled, and a
session that has cost `max_attempts` workers fails instead of taking the next one down; what can't be settled (it is frozen) is put
aside for a while. What is taken over is renewed until it is settled: by a slow store that may take longer than a lease. In a new
incarnation of Redis everything that is pending in the store is recovered, a few times over. If the sweeping thread dies the worker stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import groupby

import orjson
import structlog

from app.coord.coord import Answer, Claimed, Coord, Holder
from app.core.errors import ByreError, Fenced, Unavailable
from app.core.session import Queued, Status
from app.log import heads
from app.log.heads import LogHead
from app.log.log import View
from app.services.closing import cut_off
from app.services.inputs import drop_pending, waiting
from app.services.writer import Draft, Writer
from app.store import keys
from app.store.contract import Absent, StoreError
from app.store.keys import LogName, parse_log_name
from workers.lease import Lease, Renewer

FORGET_MS = 24 * 3600 * 1000
AT_ONCE = 100
AGAIN_SECONDS, LAST_SECONDS = 30.0, 240.0
"""After a loss of Redis the store is looked through again after this long, and then twice as long, up to the last: what was pending may
have landed late, and whoever wrote it may be dead."""
SHELF_MS = 10 * 60 * 1000
"""How long a session is left alone that can't be settled."""

logger = structlog.get_logger(__name__)


class Sweep:
    """Of one worker: any number of them may sweep one deployment. `failed` is called if the thread dies."""

    def __init__(
        self,
        writer: Writer,
        coord: Coord,
        worker: str,
        *,
        lease_ms: int,
        every: float,
        max_attempts: int,
        failed: Callable[[], None],
        renewer: Renewer,
    ) -> None:
        self._writer, self._coord, self._worker, self._renewer = writer, coord, worker, renewer
        self._lease_ms, self._every, self._max_attempts, self._failed = lease_ms, every, max_attempts, failed
        self._inc = ""
        self._gap = self._again = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweep", daemon=True)

    def start(self) -> None:
        """Starts the sweeping thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._closed.set()
        self._thread.join(5)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    self.once()
                except (Unavailable, StoreError) as error:
                    logger.warning("sweep cut short", why=str(error))
                self._closed.wait(self._every)
        except Exception:
            logger.exception("the sweeping thread died")
            self._failed()

    def once(self) -> None:
        """One round. Raises Unavailable, StoreError."""
        inc = self._coord.incarnation()
        now = time.monotonic()
        if inc != self._inc:
            self.recover_pending()
            self._inc, self._gap, self._again = inc, AGAIN_SECONDS, now + AGAIN_SECONDS
        elif self._gap <= LAST_SECONDS and now >= self._again:
            self.recover_pending()
            self._gap *= 2
            self._again = now + self._gap
        for _ in range(AT_ONCE):
            claimed = self._coord.takeover(self._worker, self._lease_ms)
            if claimed is None:
                break
            try:
                self.settle(claimed)
            except Unavailable:
                raise
            except ByreError as error:
                logger.warning("a lost session could not be settled", log=claimed.log, why=error.message)
                self._coord.shelve(claimed.log, self._worker, SHELF_MS)
        for _ in range(AT_ONCE):
            forgotten = self._coord.forget(FORGET_MS)
            if forgotten is None:
                break
            if forgotten.behind:
                self._archive(parse_log_name(forgotten.log))

    def _archive(self, name: LogName) -> None:
        """What an API process appended that died before it was archived: with it the log can be forgotten the next time."""
        try:
            self._writer.log.archive(name)
        except Unavailable:
            raise
        except ByreError as error:
            logger.warning("an idle session can't be archived", log=name.text, why=error.message)

    def recover_pending(self) -> None:
        """Recovers every session with inputs that no settled turn has consumed, and drops what is pending for nothing."""
        store = self._writer.log.store
        after = ""
        while tenants := store.list_dirs(keys.tenants_prefix(), start_after=after):
            for tenant in tenants:
                self._recover_tenant(tenant)
            after = tenants[-1]

    def _recover_tenant(self, tenant: str) -> None:
        store, after = self._writer.log.store, ""
        prefix = keys.pending_prefix(tenant)
        while page := store.list(prefix, start_after=after):
            for session, group in groupby(page, key=lambda k: keys.parse_pending(k).session):
                if self._closed.is_set():
                    return
                self._recover_session(LogName(tenant, session), list(group))
            after = page[-1]

    def _recover_session(self, name: LogName, found: list[str]) -> None:
        try:
            view = self._writer.log.view(name)
            # what Redis says was consumed is still needed until a segment says so, too
            if not self._writer.log.archive(name, gen=view.gen):
                return
        except Unavailable:
            raise
        except ByreError as error:
            logger.error("a session with pending inputs can't be recovered", log=name.text, why=error.message)
            return
        for key in found:
            place = keys.parse_pending(key)
            try:
                event_id = orjson.loads(self._writer.log.store.get(key).body)["id"]
            except Absent:
                continue
            if not waiting(view.state, event_id):
                drop_pending(self._writer, name, place.gen, place.offset)

    def settle(self, claimed: Claimed) -> None:
        """Settles a session that was taken over, and gives it back. Raises ByreError."""
        name = parse_log_name(claimed.log)
        counted = claimed.status in (Status.RUNNING, Status.QUEUED)

        def more(head: LogHead) -> dict[str, int]:
            return {"epoch": head.epoch + 1, "attempts": head.attempts + counted}

        log = self._writer.log
        with self._renewer.reserved(name.text):
            head = log.keep(name, heads.change(log.store, name, more, log.pace))
            holder = Holder(self._worker, head.epoch)
            asked = time.monotonic()
            if self._coord.activate(name.text, holder, self._lease_ms) is not Answer.OK:
                return
        with self._renewer.held(Lease(name.text, holder, asked + self._lease_ms / 1000, lambda _: None)):
            self._settle(name, claimed, head, holder)

    def _settle(self, name: LogName, claimed: Claimed, head: LogHead, holder: Holder) -> None:
        consumed: list[Queued] = []
        too_many = head.attempts >= self._max_attempts

        def decide(view: View) -> list[Draft]:
            return self._ending(name, view, holder, too_many, consumed)

        try:
            # also if the one before us has settled it, and died before that was in a segment
            self._writer.commit(name, decide, holder=holder)
        except Fenced:
            return
        logger.info("session taken over", session=name.session, status=claimed.status, attempts=head.attempts)
        for q in consumed:
            drop_pending(self._writer, name, q.gen, q.offset)
        self._coord.release(name.text, holder, force=True)

    def _ending(self, name: LogName, view: View, holder: Holder, too_many: bool, consumed: list[Queued]) -> list[Draft]:
        state = view.state
        consumed[:] = state.turn.inputs if state.turn else ()
        why = f"{self._max_attempts} workers were lost with this session; resume it to try again"
        if state.turn:
            drafts = cut_off(self._writer, name, view, "worker_lost")
            if too_many:
                data = {"turn": state.turn.id, "code": "too_many_attempts", "message": why}
                drafts[-1] = self._writer.draft("turn.failed", data)
            return drafts
        if too_many and state.status is Status.QUEUED:
            # it never came to a turn: its first input is what is given up
            turn, first = self._writer.clock.id(), state.queue[0]
            consumed[:] = [first]
            head = self._writer.log.head(name)
            started = {"turn": turn, "epoch": holder.epoch, "inputs": [first.id], "harness": head.vendor}
            return [
                self._writer.draft("turn.started", {**started, "model": head.doc["config"]["model"]}, first.id),
                self._writer.draft("turn.failed", {"turn": turn, "code": "too_many_attempts", "message": why}, first.id),
            ]
        return []
