"""One leased session on this worker: claim to release.

Rules: the epoch rises in `session.json` before the lease is active; the runner's thread is the only one that writes for the
session; when it ends, for whatever reason, the harness is dead and either the lease is given back or it is somebody else's.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog

from app.coord.coord import Answer, Caps, Coord, Holder
from app.core.errors import Corrupt, Fenced, Missing, Unavailable
from app.core.redact import Redactor
from app.core.session import State, Status
from app.log import heads
from app.log.heads import LogHead
from app.log.hub import Hub
from app.services.closing import raise_epoch
from app.services.model_keys import ModelKeys, secret_values
from app.services.restoring import publish
from app.services.writer import Writer
from app.store.keys import LogName
from workers.compaction import Compaction
from workers.harness.base import Adapter, Place
from workers.host import Host
from workers.lease import Lease, Renewer
from workers.lives import StillAlive
from workers.mailbox import Mailbox
from workers.places import Elsewhere
from workers.process import Guardian, GuardianLost, SpawnFailed
from workers.protocol_errors import ProtocolErrors
from workers.task_session import TaskSession
from workers.tools import SessionTools, ToolKit
from workers.turn import Limits, TurnRunner
from workers.workspace import Workspaces

GROUP_SECONDS = 0.1
"""How long a session waits before it asks again for a worktree that another one of its task is in."""
ELSEWHERE_SECONDS = 1.0
"""How long a session is kept from the queue after its worktree was found on another host, which can't leave it."""
SLOT_SECONDS = 0.25
"""How often a warm session asks again for a slot under the caps."""

logger = structlog.get_logger(__name__)


class Tools(NamedTuple):
    """What all runners of a worker share."""

    worker: str
    writer: Writer
    coord: Coord
    hub: Hub
    guardian: Guardian
    renewer: Renewer
    workspaces: Workspaces
    pool: ThreadPoolExecutor
    adapters: dict[str, Callable[[], Adapter]]
    caps: Caps
    limits: Limits
    warm_seconds: float
    errors: ProtocolErrors
    kit: ToolKit
    task_session: Callable[[LogName, LogHead], TaskSession]
    model_keys: ModelKeys
    compaction: Compaction | None = None
    search_path: str = "/usr/local/bin:/usr/bin:/bin"


class Runner:
    """Runs one claimed session in a thread of its own. `done` is called at its end, from that thread."""

    def __init__(self, tools: Tools, name: LogName, done: Callable[[Runner], None]) -> None:
        self.name = name
        self._t = tools
        self._done = done
        self._mailbox = Mailbox()
        self._host: Host | None = None
        self.task_id = ""
        self._task: TaskSession | None = None
        self._log = logger.bind(session=name.session)
        self._thread = threading.Thread(target=self._run, name=f"session-{name.session}", daemon=True)

    @property
    def host(self) -> Host | None:
        """Its process, if it has one."""
        return self._host

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def drain(self) -> None:
        """Asks it to begin no further turn: a session that runs none is given back at once."""
        self._mailbox.drain()

    def stop(self) -> None:
        """Asks it to end now: a turn that runs is interrupted cleanly."""
        self._mailbox.stop()

    def join(self, timeout: float) -> bool:
        """Whether it has ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._hold()
        except Fenced as error:
            self._log.info("session lost to another", why=error.message)
        except (Missing, Corrupt, Unavailable) as error:
            # the lease runs out, and the sweep settles the session when it can be reached again
            self._log.warning("session given up", why=error.message)
        except (GuardianLost, StillAlive) as error:
            self._log.error("a harness may not be dead", why=str(error))
        except Exception:  # noqa: BLE001 - the thread's last word: a bug of ours; the lease runs out and the sweep settles
            self._log.exception("session runner failed")
        finally:
            self._done(self)

    def _hold(self) -> None:
        with self._t.renewer.reserved(self.name.text):
            head = raise_epoch(self._t.writer.log, self.name)
            holder = Holder(self._t.worker, head.epoch)
            asked = time.monotonic()
            lease_ms = int(self._t.renewer.lease_seconds * 1000)
            if self._t.coord.activate(self.name.text, holder, lease_ms) is not Answer.OK:
                return
        about = head.doc.get("task")
        self.task_id = about["task_id"] if about else ""
        if about and not self._t.coord.enter(f"{self.name.tenant}:{about['task_id']}", self.name.text):
            # another session of the task is still warm in the worktree; it has been asked to let go
            time.sleep(GROUP_SECONDS)
            self._t.coord.release(self.name.text, holder, force=True)
            return
        lease = Lease(self.name.text, holder, asked + self._t.renewer.lease_seconds, self._mailbox.lost)
        self._t.renewer.add(lease)
        unwatch = self._t.hub.watch(self.name, self._mailbox.news)
        try:
            self._turns(head, lease)
        finally:
            unwatch()
            try:
                self._drop_host()
            finally:
                self._t.renewer.remove(lease)
                lease.extended = lambda _: None
                self._t.workspaces.remove(self.name, lease.owner)
                if self._task:
                    self._task.close()

    def _turns(self, head: LogHead, lease: Lease) -> None:
        log = self._t.writer.log
        self._mask = Redactor()
        self._tools = SessionTools(
            self._t.kit, self.name, head, self._mailbox, lambda: heads.load(log.store, self.name, log.pace)
        )
        try:
            self._task = self._t.task_session(self.name, head) if head.doc.get("task") else None
        except Elsewhere as error:
            self._log.info("left to the host that has the worktree", why=error.message)
            time.sleep(ELSEWHERE_SECONDS)
            self._release(lease, force=True)
            time.sleep(ELSEWHERE_SECONDS)  # this worker had it last, and would be offered it first
            return
        turns = TurnRunner(
            self._t.writer,
            self.name,
            head,
            lease,
            self._mailbox,
            self._t.workspaces,
            self._t.pool,
            self._t.limits,
            self._mask,
            self._tools,
            self._task,
        )
        attempts = head.attempts
        while True:
            view = log.view(self.name)
            state = view.state
            parked = (state.not_before - log.clock()) / 1000 if state.not_before else 0.0
            if state.status is Status.QUEUED and parked <= 0 and not self._mailbox.draining:
                if not self._slot(lease):
                    return
                outcome = self._turn(turns, head, lease, state, view.gen)
                if outcome == "turn.completed" and attempts:
                    heads.change(log.store, self.name, lambda h: self._unblamed(h, lease), log.pace)
                    attempts = 0
                continue
            if state.status in (Status.IDLE, Status.QUEUED) and self._host and self._wait_warm(parked):
                continue
            publish(self._t.writer, self.name, state.checkpoint, view.gen)
            answer = self._release(lease, force=self._mailbox.draining)
            if answer is Answer.WORK:
                continue
            if answer is not Answer.OK:
                self._log.warning("lease not given back", answer=str(answer))
            elif self._t.compaction and not self._mailbox.draining:
                self._t.compaction.released(self.name, view.arch)
            return

    @staticmethod
    def _unblamed(head: LogHead, lease: Lease) -> dict[str, int] | None:
        """A turn of this lease has completed: the workers that were lost before don't count any more."""
        return {"attempts": 0} if head.attempts and head.epoch == lease.holder.epoch else None

    def _turn(self, turns: TurnRunner, head: LogHead, lease: Lease, state: State, gen: int) -> str:
        failure: tuple[str, str] | None = None
        if self._task and self._task.renew():
            self._drop_host()
        if self._host is None or self._host.child.wait(0) is not None:
            self._drop_host()
            try:
                place = self._t.workspaces.materialise(self.name, state.checkpoint, lease.owner)
                if self._task:
                    place = dataclasses.replace(place, cwd=self._task.path, people=True)
                    self._task.set_up(self._t.guardian, lease, place.home, self._t.search_path, self._stopped)
                    if self._mailbox.loss:
                        raise Fenced(self._mailbox.loss)
                self._host = self._start(head, place, lease)
            except Corrupt as error:
                failure = ("checkpoint_corrupt", f"{error.message} ({error.key})")
            except Missing as error:
                failure = ("checkpoint_missing", error.message)
            except (SpawnFailed, OSError) as error:
                failure = ("harness_not_started", str(error))
        try:
            turn, _ = turns.begin(state, gen)
        except Missing:
            return "withdrawn"
        if failure or self._host is None:
            outcome = turns.fail(turn, *(failure or ("harness_not_started", "")))
        else:
            turns.mask(self._mask)
            outcome = turns.play(self._host, turn)
        if not outcome.keep:
            self._drop_host()
        return outcome.kind

    def _stopped(self) -> bool:
        return self._mailbox.loss is not None or self._mailbox.stopping

    def _start(self, head: LogHead, place: Place, lease: Lease) -> Host:
        make = self._t.adapters.get(head.vendor)
        if make is None:
            raise OSError(f"this worker has no harness {head.vendor!r}")
        config = head.doc["config"]
        if self._task:
            self._task.alone()
        own = self._task.environment() if self._task else {}
        variables = self._t.model_keys.variables(self.name.tenant, head.vendor)
        secrets = [*variables.values(), *secret_values(make().environment(place)), *secret_values(own)]
        self._mask = Redactor([*secrets, *self._tools.secrets()])
        place = dataclasses.replace(
            place,
            model=config["model"],
            instructions=config.get("instructions", ""),
            reasoning_effort=config.get("reasoning_effort", ""),
            variables={**own, **variables},
        )
        host = Host.start(
            self._t.guardian, make(), place, lease.deadline, self._mailbox, self._t.errors, self._tools, self._mask
        )
        lease.extended = host.child.set_deadline
        return host

    def _slot(self, lease: Lease) -> bool:
        """Waits for a slot under the caps; False once the session should be left to others."""
        while True:
            answer = self._t.coord.begin(self.name.text, lease.holder, self._t.caps)
            if answer is Answer.OK:
                return True
            if answer is not Answer.FULL:
                raise Fenced(f"no slot: {answer}")
            self._mailbox.wait(SLOT_SECONDS)
            if self._mailbox.loss or self._mailbox.draining:
                return self._mailbox.loss is None and self._give_back(lease)
            state = self._t.writer.log.view(self.name).state
            if state.status is not Status.QUEUED:
                return self._give_back(lease)

    def _give_back(self, lease: Lease) -> bool:
        self._release(lease, force=True)
        return False

    def _release(self, lease: Lease, *, force: bool) -> Answer:
        """Gives the lease back, when nothing of the session is left here: its next holder may be on this host."""
        self._drop_host()
        self._t.workspaces.remove(self.name, lease.owner)
        return self._t.coord.release(self.name.text, lease.holder, force=force)

    def _wait_warm(self, parked: float) -> bool:
        """Waits with the harness kept, for news or until a parked queue may go on; False when it is time to let go."""
        now = time.monotonic()
        until = now + self._t.warm_seconds
        reset = now + parked if 0 < parked < self._t.warm_seconds else None
        while True:
            left = min(until, reset or until) - time.monotonic()
            if left <= 0:
                return reset is not None
            if self._mailbox.draining or self._host is None or self._host.child.wait(0) is not None:
                return False
            _, news, ended = self._mailbox.wait(left)
            if self._mailbox.loss:
                raise Fenced(self._mailbox.loss)
            if ended:
                return False
            if news and self._news():
                return True
            if news and self._task:
                return False  # nothing has come for this session, so another one of its task wants the worktree

    def _news(self) -> bool:
        look = self._t.coord.look(self.name.text)
        if look is None or look.worker != self._t.worker:
            raise Fenced("the lease was revoked")
        return b'"status":"idle"' not in look.state

    def _drop_host(self) -> None:
        host, self._host = self._host, None
        if host:
            host.stop()
