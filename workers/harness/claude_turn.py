"""What is known of the turn that the Claude Code CLI runs for us: what it has taken in, what was asked of it, what it has used, how it
ends.

Rules: a `result` is judged by its `is_error` and status, not by its subtype: a 429 of the vendor has the subtype `success`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.harness import claude_blocks as blocks
from workers.harness.base import Done, Failed, Interrupted, RateLimited, Used

LIMITED = (429, 529)
"""Statuses of the vendor that are no failures: the same request works later."""
_VENDOR_CODES = {401: "vendor_auth", 402: "vendor_auth", 403: "vendor_auth"}
Tokens = dict[str, int]


@dataclass
class Running:
    """One open turn.

    `main` is the UUID of its message, `taken` whether the CLI has begun with it; `steers` are UUIDs of steering messages that it has not
    taken in, with their inputs; `held` is the end that waits for them; `parked` the limit for which it is being stopped.
    """

    main: str
    taken: bool = False
    interrupting: bool = False
    parked: RateLimited | None = None
    held: Done | None = None
    steers: dict[str, str] = field(default_factory=dict)
    limit: dict[str, Any] = field(default_factory=dict)
    timestamp: Any = None
    cost: float | None = None
    _usage: Tokens = field(default_factory=dict)  # of results
    _before: Tokens = field(default_factory=dict)  # of messages since, that are over
    _current: Tokens = field(default_factory=dict)  # of the message that is being written
    _base: float | None = None
    _seen: float | None = None

    def message_begins(self, usage: Any) -> None:
        """The model begins a message; `usage` is as the Messages API gives it."""
        self._before = blocks.added(self._before, self._current)
        self._current = blocks.tokens(usage)

    def message_ends(self, usage: Any) -> None:
        """The model has ended it."""
        self._current |= blocks.tokens(usage)

    def total_cost(self, total: float) -> None:
        """The process's cost up to now, asked for: the first answer is what the turn began with."""
        if self._base is None:
            self._base = total
        self._seen = max(0.0, total - self._base)

    def result(self, said: dict[str, Any], total_before: float) -> None:
        """Adds what a `result` line has used: its own counts where it has them, else from the totals of the process."""
        since = said.get("model_usage_since_last_result")
        self._usage = blocks.added(self._usage, blocks.model_tokens(since) or blocks.tokens(said.get("usage")))
        self._before, self._current = {}, {}
        cost = blocks.model_cost(since)
        total = blocks.number(said.get("total_cost_usd"))
        if cost is None and total is not None:
            cost = max(0.0, total - total_before)
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def used(self) -> Used:
        """What it has used, with what is under way."""
        usage = blocks.added(self._usage, blocks.added(self._before, self._current))
        return Used(usage, self._seen if self._seen is not None else self.cost)

    def done(self, text: str) -> Done:
        """Its normal end."""
        return Done(dict(self._usage), self.cost, text)

    def failure(self, said: dict[str, Any]) -> Failed | Interrupted | RateLimited:
        """Its end by a `result` that calls itself an error."""
        if self.parked:
            return self.parked
        if self.interrupting:
            return Interrupted()
        status, subtype = said.get("api_error_status"), str(said["subtype"])
        text = str(said.get("result") or "; ".join(map(str, said.get("errors") or ())) or subtype)[:2000]
        if status in LIMITED:
            return RateLimited(blocks.seconds_until(self.limit.get("resetsAt"), self.timestamp), text)
        if subtype != "success":
            lost = text.startswith("No conversation found")
            return Failed("native_state_lost" if lost else subtype.removeprefix("error_"), text)
        if isinstance(status, int) and 400 <= status < 500:
            return Failed(_VENDOR_CODES.get(status, "vendor_refused"), text)
        return Failed("vendor_error", text)
