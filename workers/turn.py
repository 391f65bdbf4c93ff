"""One turn: from a queued input to a settled turn, under one lease.

Rules (design page 2): the harness gets an input only after `turn.started` is seen in a segment; whatever the harness does, the turn
is settled by exactly one event; native state is uploaded before the event that names it. Losing the lease is Fenced: then nothing more
is written, and whoever takes over settles the turn.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import structlog

from app.core.cursor import Position
from app.core.errors import Fenced, Missing
from app.core.redact import Redactor
from app.core.session import Queued, State
from app.log import events, heads
from app.log.heads import LogHead
from app.log.log import View, now_text
from app.services.closing import UNKNOWN
from app.services.inputs import drop_pending
from app.services.writer import Draft, Writer
from app.store.keys import LogName
from workers.bridge.outputs import BridgeCall
from workers.harness.base import ENDS, Done, Failed, Input, Interrupted, RateLimited, Steered, Turn, Used
from workers.host import Host
from workers.lease import Lease
from workers.mailbox import Anything, Mailbox
from workers.process import Deaf
from workers.pump import Pump
from workers.stuck import Stuck
from workers.task_session import TaskSession
from workers.tools import SessionTools
from workers.workspace import ScratchTooLarge, Workspaces

INTERRUPT_GRACE = 5.0
"""Seconds in which a harness must answer an interrupt before its tree is killed."""
OWN_END_SECONDS = 2.0
"""For an agent whose output has ended to end by itself too."""
UNKNOWN_RESET_SECONDS = 60.0

logger = structlog.get_logger(__name__)


class Limits(NamedTuple):
    """`turn_seconds`: longest turn; most `tokens` and `cost_usd` of one, where the harness reports them (0: no limit).

    `stuck_seconds`: a turn that is silent for longer is shown as stuck.
    """

    turn_seconds: float
    tokens: int = 0
    cost_usd: float = 0.0
    stuck_seconds: float = 300.0

    def passed(self, used: Used) -> str | None:
        """Which limit a turn that used this much has passed, for a person; None if none."""
        tokens = sum(n for name, n in used.usage.items() if name.endswith("_tokens"))
        if self.tokens and tokens > self.tokens:
            return f"the turn used {tokens} tokens; BYRE_TURN_TOKENS allows {self.tokens}"
        if self.cost_usd and (used.cost_usd or 0.0) > self.cost_usd:
            return f"the turn cost {used.cost_usd:.4f} US dollars; BYRE_TURN_COST_USD allows {self.cost_usd:g}"
        return None


class Outcome(NamedTuple):
    """How a turn was settled: `keep` says whether the harness may stay for the next one."""

    kind: str
    keep: bool


class TurnRunner:
    """Runs turns of one session. One thread; `host` is set while a harness runs."""

    def __init__(
        self,
        writer: Writer,
        name: LogName,
        head: LogHead,
        lease: Lease,
        mailbox: Mailbox,
        workspaces: Workspaces,
        pool: ThreadPoolExecutor,
        limits: Limits,
        redactor: Redactor,
        tools: SessionTools,
        task: TaskSession | None = None,
    ) -> None:
        self._writer, self._name, self._head, self._lease = writer, name, head, lease
        self._mailbox, self._workspaces, self._pool, self._limits = mailbox, workspaces, pool, limits
        self._pump = Pump(writer, name, lease, pool, redactor)
        self._tools, self._task = tools, task
        self._seen: set[str] = set()
        self._cause = ""
        self._used = Used({})
        self._over: str | None = None

    def mask(self, redactor: Redactor) -> None:
        """From now on what the harness says is masked with `redactor`."""
        self._pump.redact = redactor

    def begin(self, state: State, gen: int) -> tuple[Turn, Queued]:
        """Consumes the first queued input by a durable `turn.started`. Raises Fenced, Missing."""
        first = state.queue[0]
        assert isinstance(first.offset, int)
        said = events.parse(self._writer.log.at(self._name, Position(first.gen, first.offset)))["data"]
        purpose = said.get("purpose", "message")
        images = self._task.images(said["images"]) if self._task and said.get("images") else ()
        # byre gives its sessions another model between turns, also to a process that is kept warm
        log = self._writer.log
        config = (heads.load(log.store, self._name, log.pace) if self._task else self._head).doc["config"]
        turn = Turn(
            turn_id=self._writer.clock.id(),
            # what byre asks for is no message: the agent is told by its own means
            inputs=(Input(first.id, said["text"], images),) if purpose == "message" else (),
            purpose=purpose,
            merge_ref=said.get("merge_ref"),
            model=config["model"],
            instructions=config.get("instructions", ""),
            reasoning_effort=config.get("reasoning_effort", ""),
            tools=self._head.doc["descriptors"],
            task_title=self._task.task["title"] if self._task else None,
        )
        data = {
            "turn": turn.turn_id,
            "epoch": self._lease.holder.epoch,
            "inputs": [first.id],
            "harness": self._head.vendor,
            "model": config["model"],
        }
        if purpose != "message":
            data["purpose"] = purpose

        def decide(view: View) -> list[Draft]:
            if all(q.id != first.id for q in view.state.queue):
                raise Missing("the input was withdrawn")
            return [self._writer.draft("turn.started", data, first.id)]

        self._writer.commit(self._name, decide, holder=self._lease.holder)
        self._pump.begin(turn.turn_id, first.id)
        self._cause = first.id
        if self._task:
            self._task.started()
        self._seen = {q.id for q in state.queue}
        return turn, first

    def play(self, host: Host, turn: Turn) -> Outcome:
        """Gives the turn to the harness, pumps what it says, and settles. Raises Fenced."""
        started = time.monotonic()
        until = started + self._limits.turn_seconds
        steered: dict[str, bool] = {}
        cut: tuple[str, float] | None = None
        end: Anything | None = None
        stuck = Stuck(self._limits.stuck_seconds, self._name.session or "", turn.turn_id)
        self._used, self._over = Used({}), None
        self._tools.turn = turn.turn_id
        try:
            host.child.send(host.adapter.start_turn(turn))
        except Deaf as error:
            return self._settle(
                turn, host, started, Failed("harness_exited", f"{error} {host.stderr}".strip()), steered, keep=False
            )
        while end is None:
            due = min(
                self._task.tick() if self._task else math.inf,
                self._pump.tick(),
                (cut[1] if cut else until) - time.monotonic(),
                stuck.look(max(host.heard, started)),
            )
            outputs, news, ended = self._mailbox.wait(due)
            if self._mailbox.loss:
                raise Fenced(self._mailbox.loss)
            self._pump.write(outputs)
            if self._task and outputs:
                self._task.wrote(outputs)
            for output in outputs:
                if isinstance(output, Steered):
                    steered[output.input_id] = True
                elif isinstance(output, BridgeCall) and output.turn == turn.turn_id and not cut:
                    # any other is not in the log, or the turn ends: it is not made
                    output.written.set()
                elif isinstance(output, Used):
                    self._used = output
                    self._over = self._over or self._limits.passed(output)
            end = next((o for o in outputs if isinstance(o, ENDS)), None)
            if end or ended:
                break
            if news:
                reason = self._look(host, turn, steered)
                cut = cut or (self._cut(host, reason) if reason else None)
            if self._mailbox.stopping and not cut:
                cut = self._cut(host, "drained")
            now = time.monotonic()
            if not cut and (now >= until or self._over):
                cut = self._cut(host, "limit")
            if cut and now >= cut[1]:
                break
        stuck.over()
        return self._settle(turn, host, started, end, steered, reason=cut[0] if cut else None, keep=end is not None)

    def fail(self, turn: Turn, code: str, message: str) -> Outcome:
        """Settles a turn whose harness could not be started. Raises Fenced."""
        return self._append_end("turn.failed", turn, {"code": code, "message": message}, keep=False)

    def _cut(self, host: Host, reason: str) -> tuple[str, float]:
        asked = host.adapter.interrupt()
        if asked is None:
            return reason, time.monotonic()
        try:
            host.child.send(asked)
        except Deaf:
            return reason, time.monotonic()
        return reason, time.monotonic() + INTERRUPT_GRACE

    def _look(self, host: Host, turn: Turn, steered: dict[str, bool]) -> str | None:
        """What the log says of this turn by now: a reason to cut it, or None; messages to steer with are handed over. Raises Fenced."""
        look = self._writer.log.coord.look(self._name.text)
        if look is None or look.worker != self._lease.holder.worker or look.epoch != str(self._lease.holder.epoch):
            raise Fenced("the lease was revoked")
        state = self._writer.log.view(self._name).state
        if state.turn is None or state.turn.id != turn.turn_id:
            raise Fenced("the turn was settled by another")
        if state.turn.interrupting:
            return "user"
        for waiting in state.queue:
            if waiting.id not in self._seen:
                self._seen.add(waiting.id)
                self._steer(host, turn, waiting, steered)
        return None

    def _steer(self, host: Host, turn: Turn, waiting: Queued, steered: dict[str, bool]) -> None:
        assert isinstance(waiting.offset, int)
        data = events.parse(self._writer.log.at(self._name, Position(waiting.gen, waiting.offset)))["data"]
        if data.get("delivery") != "steer" or not host.adapter.steers:
            return

        def decide(view: View) -> list[Draft]:
            if all(q.id != waiting.id for q in view.state.queue):
                return []
            return [self._writer.draft("turn.steered", {"turn": turn.turn_id, "inputs": [waiting.id]}, waiting.id)]

        if self._writer.commit(self._name, decide, holder=self._lease.holder):
            steered[waiting.id] = False
            said = host.adapter.steer(Input(waiting.id, data["text"]))
            try:
                host.child.send(said or b"")
            except Deaf:
                logger.info("steering not taken", session=self._name.session, input=waiting.id)

    def _settle(
        self,
        turn: Turn,
        host: Host,
        started: float,
        end: Anything | None,
        steered: dict[str, bool],
        *,
        reason: str | None = None,
        keep: bool,
    ) -> Outcome:
        """Saves what is to be saved and appends the event that ends the turn."""
        data: dict[str, Any] = {}
        self._tools.turn = ""
        if end is None:
            # deaf, or gone: nothing that it has left is known to be whole
            if reason is None:
                host.child.wait(OWN_END_SECONDS)  # else our kill may be first, and its exit status a signal that it never got
            host.stop()
        if isinstance(end, Done | RateLimited | Interrupted):
            try:
                data["checkpoint"] = self._save(host)
            except ScratchTooLarge as error:
                end, keep = Failed("workspace_full", str(error)), False
            except OSError as error:
                end, keep = Failed("workspace_failed", f"the worker's disk failed: {error.strerror}"), False
        self._pump.finish()
        if not isinstance(end, Done):
            data |= {"usage": self._used.usage} if self._used.usage else {}
            data |= {"cost_usd": self._used.cost_usd} if self._used.cost_usd is not None else {}
        returned = [i for i, taken in steered.items() if not taken]
        if returned:
            data["returned"] = returned
        match end:
            case Done(usage, cost, _) if reason != "user":
                # a limit or drain that came too late for it cuts nothing
                data |= {"usage": usage, "duration_ms": int((time.monotonic() - started) * 1000)}
                if cost is not None:
                    data["cost_usd"] = cost
                return self._append_end("turn.completed", turn, data, keep)
            case Done(usage, cost, _):
                data |= {"usage": usage, **({"cost_usd": cost} if cost is not None else {})}
                # it was faster than the interrupt: what it said is whole, but it was told to stop
                return self._append_end("turn.interrupted", turn, {**data, "reason": reason}, keep=False)
            case RateLimited(seconds, detail) if reason is None:
                wait = UNKNOWN_RESET_SECONDS if seconds is None else seconds
                reset_ms = self._writer.log.clock() + int(wait * 1000)
                data |= {"detail": detail, "retry_after": wait, "reset_ms": reset_ms, "reset_at": now_text(reset_ms / 1000)}
                return self._append_end("rate_limited", turn, data, keep)
            case Failed(code, message):
                return self._append_end("turn.failed", turn, {**data, "code": code, "message": message}, keep=False)
            case None if reason is None:
                message = f"the agent process ended with exit status {host.child.returncode}. {host.stderr}".strip()
                return self._append_end("turn.failed", turn, {**data, "code": "harness_exited", "message": message}, keep=False)
            case _:
                # not kept: what the turn has started in the background must end with it
                over = {"message": self._over} if self._over and reason == "limit" else {}
                return self._append_end("turn.interrupted", turn, {**data, **over, "reason": reason or "harness"}, keep=False)

    def _save(self, host: Host) -> str:
        view = self._writer.log.view(self._name)
        at = {"gen": view.state.turn.gen, "offset": view.state.turn.since} if view.state.turn else {"gen": 0, "offset": -1}
        return self._workspaces.save(self._name, host, at, self._lease.owner)

    def _append_end(self, kind: str, turn: Turn, data: dict[str, Any], keep: bool) -> Outcome:
        """One batch: what is still open of the turn's calls, and its end; durable before this returns."""
        open_calls = list(self._pump.open_calls)
        data = self._pump.redact.value(data)

        def decide(view: View) -> list[Draft]:
            assert view.state.turn and view.state.turn.id == turn.turn_id
            inputs[:] = view.state.turn.inputs
            cut = [
                self._writer.draft("tool.result", {"turn": turn.turn_id, "call_id": call, "result": UNKNOWN}, self._cause)
                for call in open_calls
            ]
            return [*cut, self._writer.draft(kind, {"turn": turn.turn_id, **data}, self._cause)]

        inputs: list[Queued] = []
        if self._task:
            self._task.ending(turn.turn_id, kind, data)
        self._writer.commit(self._name, decide, holder=self._lease.holder)
        if self._task:
            self._task.settled()
        if kind != "rate_limited":
            for q in inputs:
                if q.id not in data.get("returned", ()):
                    self._pool.submit(drop_pending, self._writer, self._name, q.gen, q.offset)
        return Outcome(kind, keep and kind != "turn.failed")
