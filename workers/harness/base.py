"""What a harness adapter is: one class that knows how to talk to one kind of agent process.

Rules: an adapter is pure translation, turns and commands to bytes and lines to outputs; it does no I/O, keeps no clock and
reads no environment. One object serves one process, so it may remember what that process said. Starting, pumping, limits,
killing, batching, tools and checkpoints are shared and not its business. A line it can't make sense of raises ProtocolError,
which the pump counts and keeps; it never ends the turn. A turn ends with exactly one of Done, Failed, Interrupted or
RateLimited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

KEEP_OF_BAD_LINE = 4096
Purpose = Literal["message", "merge_in", "handoff"]


class ProtocolError(Exception):
    """A line of a harness that isn't what its protocol says. `raw` is the line, cut to 4 KiB, `size` how long it was in bytes."""

    def __init__(self, reason: str, raw: bytes = b"", size: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.raw, self.size = reason, raw[:KEEP_OF_BAD_LINE], len(raw) if size is None else size


@dataclass(frozen=True)
class Image:
    """An image that belongs to an input: its type from the bytes ("image/png", ...), and the bytes."""

    media_type: str
    data: bytes


@dataclass(frozen=True)
class Input:
    """One message of a user: the id of its event, its text, its images."""

    id: str
    text: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One run of the agent.

    `purpose` says what for: `message` plays the inputs; `merge_in` brings `merge_ref` (the default branch: a ref or commit id)
    into the worktree; `handoff` asks for the six headed parts that a successor session starts from. `task_title` is set in
    byre sessions only. `model` "" is the vendor's default. `instructions` go beside the harness's own system prompt. `tools`
    are the descriptors of the tools that the bridge offers (Brain contract, `name`, `description`, `input_schema`).
    """

    turn_id: str
    inputs: tuple[Input, ...] = ()
    purpose: Purpose = "message"
    model: str = ""
    instructions: str = ""
    reasoning_effort: str = ""
    task_title: str | None = None
    merge_ref: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Place:
    """Where a harness runs: `home` holds its native state (its HOME too), `cwd` is the workspace.

    `fresh` means that there is no native state: the session starts now. `bridge_socket` is the unix socket of the tool bridge,
    on which JSON lines go: `{"id": n, "tool": name, "arguments": {...}}` there, then any number of `{"id": n, "progress":
    any}` and one `{"id": n, "result": Result}` back. `model`, `instructions` and `reasoning_effort` are those of the session's
    configuration ("": the harness's default); `variables` go into the process's environment: model keys, and what the deployment adds;
    `kept` is what a former process asked to Keep; `people`: questions of the harness's own reach people, who answer by a message.
    """

    home: Path
    cwd: Path
    session_id: str
    bridge_socket: Path | None = None
    fresh: bool = True
    model: str = ""
    instructions: str = ""
    reasoning_effort: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    kept: bytes = b""
    tenant: str = ""
    people: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the message that is being written; the whole follows as a Message. Never logged. `text` may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message of the assistant."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A whole passage of the model's reasoning, where the harness shows it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The harness calls a tool of its own. Calls over the bridge don't come this way: the worker sees them there."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """News of a running call of the harness's own tool."""

    id: str
    data: Any


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a call ended. `result` is the Brain contract's Result: `{"content": [{"type": "text", "text": ""}], "is_error"?}`."""

    id: str
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Steered:
    """The steering input `input_id` is now part of the running turn.

    One that isn't confirmed before the turn ends was not taken in: the worker must put it into the next turn.
    """

    input_id: str


@dataclass(frozen=True, slots=True)
class Send:
    """No output, but an answer: to be written to the harness's stdin, as its protocol demands."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """No output, but something to remember with the native state: the next process finds it in `Place.kept`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Used:
    """What the running turn has used up to now: `usage` as in Done, `cost_usd` None if it isn't known."""

    usage: dict[str, int]
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The turn ended normally. `usage` (tokens) is as reported, `cost_usd` None if it isn't; `text` is the last message."""

    usage: dict[str, Any] = field(default_factory=dict)
    cost_usd: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn failed; the process may go on to serve another."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The turn ended because it was told to."""


@dataclass(frozen=True, slots=True)
class RateLimited:
    """A limit of the vendor parks the turn: to be tried again with the same inputs in `reset_seconds` (None: not known).

    The native state must be checkpointed like after a Done: the harness may remember what it did already.
    """

    reset_seconds: float | None
    detail: str


Output = (
    Delta | Message | Thinking | ToolCall | ToolProgress | ToolResult | Steered | Send | Keep | Used
    | Done | Failed | Interrupted | RateLimited
)  # fmt: skip
ENDS = (Done, Failed, Interrupted, RateLimited)


class Adapter(Protocol):
    """The translation for one kind of harness. `name` is what `POST /sessions` calls it; `line_limit` bytes are the longest line;
    `steers` says whether it can bring a message into a running turn.

    Methods that answer None: the harness can't do that while it runs; the worker uses the means it has (a queue, a kill, a
    restart from native state). `decode` is called from one thread; the others from one thread too, which may be a different
    one.
    """

    name: str
    line_limit: int
    steers: bool

    def command(self, place: Place) -> list[str]:
        """The command line, for a fresh start or, if not `place.fresh`, to go on from the native state."""

    def environment(self, place: Place) -> dict[str, str]:
        """The whole environment of the process: nothing is inherited."""

    def native_paths(self, place: Place) -> list[Path]:
        """The files that are its native state, under `place.home`; those that don't exist yet are left out of a checkpoint."""

    def start_turn(self, turn: Turn) -> bytes:
        """What to write to its stdin to begin `turn`."""

    def steer(self, steering: Input) -> bytes | None:
        """Brings `steering` into the running turn; to be confirmed by a Steered."""

    def interrupt(self) -> bytes | None:
        """Ends the running turn; it answers with Interrupted, or with another end if that was faster."""

    def set_model(self, model: str) -> bytes | None:
        """The model from the next turn on; "" is the vendor's default."""

    def decode(self, line: bytes) -> list[Output]:
        """What one line of its stdout means. Raises ProtocolError."""

    def lost(self, head: bytes, tail: bytes) -> list[Output]:
        """What a line over `line_limit` means, of which only both ends (4 KiB each) are left. It was counted as a ProtocolError.

        What ends a turn must be seen here too, or the turn would never end.
        """
