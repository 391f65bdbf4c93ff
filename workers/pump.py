"""Harness outputs into the log: as events, batched, archived at most a second or 256 KiB behind; deltas coalesced.

Rules: what is there is appended at once, and while one append is under way the next batch gathers, so batches grow with the load and
an idle harness waits for nothing. Only the holder of the lease gets anything in; whoever lost it stops with Fenced.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from app.coord.coord import Answer
from app.core.errors import Fenced, Unavailable
from app.core.redact import Redactor
from app.services.writer import Draft, Writer
from app.store.keys import LogName
from workers.bridge.outputs import BridgeCall, BridgeProgress, BridgeResult
from workers.harness.base import Delta, Message, Thinking, ToolCall, ToolProgress, ToolResult
from workers.lease import Lease
from workers.mailbox import Anything

BATCH_BYTES = 256 * 1024
ARCHIVE_BYTES = 256 * 1024
ARCHIVE_SECONDS = 1.0
BEHIND_BYTES = 8 * 2**20
"""Unarchived output at which the harness is made to wait for the store."""
DELTA_SECONDS = 0.05


class Pump:
    """Writes one session's turn output. Used by its runner's thread only."""

    def __init__(self, writer: Writer, name: LogName, lease: Lease, pool: ThreadPoolExecutor, redactor: Redactor) -> None:
        self._writer, self._name, self._lease, self._pool, self.redact = writer, name, lease, pool, redactor
        self._turn, self._input = "", ""
        self._behind = 0
        self._since = 0.0
        self._archiving: Future[bool] | None = None
        self._delta: list[str] = []
        self._delta_at = 0.0
        self.open_calls: dict[str, None] = {}
        self.last_text = ""

    def begin(self, turn: str, input_id: str) -> None:
        """From now on outputs belong to `turn`, which `input_id` caused."""
        self._turn, self._input = turn, input_id
        self.open_calls.clear()
        self._delta.clear()
        self.last_text = ""

    def write(self, outputs: Sequence[Anything]) -> None:
        """Appends outputs in order. Raises Fenced."""
        batch: list[tuple[str, bytes]] = []
        size = 0
        for output in outputs:
            if isinstance(output, Delta):
                self._delta.append(output.text)
                continue
            made = self._event(output)
            if made is None:
                continue
            if isinstance(output, Message):
                # a client that shows deltas has the whole text before the message replaces it
                self.flush_delta(whole=True)
            batch.append((made.id, made.line()))
            size += len(batch[-1][1])
            if size > BATCH_BYTES:
                self.append(batch)
                batch, size = [], 0
        if batch:
            self.append(batch)
        if self._delta and time.monotonic() - self._delta_at >= DELTA_SECONDS:
            self.flush_delta()

    def append(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Appends lines under the lease, for as long as it lasts. Raises Fenced."""
        wait = 0.05
        while True:
            try:
                done = self._writer.log.append(self._name, batch, holder=self._lease.holder)
                break
            except Unavailable:
                if not self._lease.alive:
                    raise Fenced("the lease ran out while Redis could not be reached") from None
                time.sleep(wait)
                wait = min(wait * 2, 1.0)
        if done.answer not in (Answer.OK, Answer.DUP):
            raise Fenced(f"append refused: {done.answer}")
        if not self._behind:
            self._since = time.monotonic()
        self._behind += sum(len(line) for _, line in batch)
        self.tick()

    def tick(self) -> float:
        """Starts an archive if one is due; gives the seconds until there may be something to do. Raises Fenced."""
        now = time.monotonic()
        if self._archiving and self._archiving.done():
            self._settle(self._archiving)
        due = ARCHIVE_SECONDS
        if self._behind and not self._archiving:
            due = self._since + ARCHIVE_SECONDS - now
            if due <= 0 or self._behind >= ARCHIVE_BYTES:
                self._archiving = self._pool.submit(self._writer.log.archive, self._name)
                self._behind, due = 0, ARCHIVE_SECONDS
        if self._archiving and self._behind > BEHIND_BYTES:
            self._settle(self._archiving)
        if self._delta:
            due = min(due, max(0.0, self._delta_at + DELTA_SECONDS - now))
            if now - self._delta_at >= DELTA_SECONDS:
                self.flush_delta()
        return due

    def flush_delta(self, *, whole: bool = False) -> None:
        """Publishes the gathered delta text, but for an end that may be the beginning of a secret unless `whole`. Raises Fenced."""
        text = "".join(self._delta)
        held = 0 if whole else self.redact.held(text)
        self._delta[:] = [text[len(text) - held :]] if held else []
        text = text[: len(text) - held]
        self._delta_at = time.monotonic()
        if not text:
            return
        data = {"turn": self._turn, "text": self.redact.text(text)}
        raw = self._writer.draft("assistant.delta", data, self._input).line()
        try:
            answer = self._writer.log.coord.delta(self._name.text, self._lease.holder, raw)
        except Unavailable:
            return  # a delta is never kept: the whole message follows
        if answer is not Answer.OK:
            raise Fenced(f"delta refused: {answer}")

    def finish(self) -> None:
        """Waits for an archive that is under way, and sends what is left of the deltas. Raises Fenced."""
        self.flush_delta(whole=True)
        if self._archiving:
            self._settle(self._archiving)

    def _settle(self, archiving: Future[bool]) -> None:
        self._archiving = None
        try:
            going_on = archiving.result()
        except Unavailable:
            # the next one tries again; until then the tail holds it
            self._behind = max(self._behind, 1)
            return
        if not going_on:
            raise Fenced("the log was recovered")

    def _event(self, output: Anything) -> Draft | None:
        data: dict[str, Any]
        if isinstance(output, BridgeCall | BridgeProgress | BridgeResult) and output.turn != self._turn:
            return None
        match output:
            case Message(text):
                kind, data = "assistant.message", {"text": text}
                self.last_text = text
            case Thinking(text):
                kind, data = "assistant.thinking", {"text": text}
            case ToolCall(id, name, arguments) | BridgeCall(_, id, name, arguments):
                kind, data = "tool.call", {"id": id, "name": name, "arguments": arguments}
                self.open_calls[id] = None
            case ToolProgress(id, progress) | BridgeProgress(_, id, progress):
                kind, data = "tool.progress", {"call_id": id, "progress": progress}
            case ToolResult(id, result) | BridgeResult(_, id, result):
                if id not in self.open_calls:
                    return None
                kind, data = "tool.result", {"call_id": id, "result": result}
                self.open_calls.pop(id, None)
            case _:
                return None
        return self._writer.draft(kind, {"turn": self._turn, **self.redact.value(data)}, self._input)
