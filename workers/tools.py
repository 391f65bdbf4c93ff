"""Calls of a session's tools: recorded, checked, routed, answered.

Rules: a call is in the log before it is dispatched, so a call that a lost worker had open gets an unknown outcome; arguments are checked
against the tool's `input_schema` before anything is sent; each call has a deadline and exactly one result. Nothing that goes wrong with
a tool ends the turn: the agent gets a result that says so.
"""

from __future__ import annotations

import base64
import functools
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import orjson
import structlog

from app.core.errors import ByreError, Corrupt
from app.core.redact import Redactor
from app.core.tools import bounded, text_result
from app.log.heads import LogHead
from app.services.descriptors import credential_context
from app.services.tokens import Tokens
from app.services.writer import Clock
from app.store import keys
from app.store.cipher import Cipher, Undecryptable
from app.store.contract import Store, StoreError
from app.store.keys import LogName
from workers.arguments import refusal
from workers.bridge.outputs import BridgeCall, BridgeProgress, BridgeResult
from workers.mailbox import Mailbox

RESULT_BYTES = 256 * 1024
"""A larger result is kept as a blob, and its event and the agent get a reference."""
WRITE_SECONDS = 30.0
WRITE_SLICE = 0.5
PROGRESS_BYTES = 64 * 1024
MOST_PROGRESS = 1000
"""Larger and further reports of a call's progress are passed over: each is an event for ever."""

Document = dict[str, Any]
logger = structlog.get_logger(__name__)


class Call(NamedTuple):
    """A checked call, on its way to whoever answers it. `deadline` is monotonic."""

    id: str
    binding: Document
    tool: str
    arguments: Any
    scope: Document
    credential: Any
    progress: Callable[[Any], None]
    cancelled: threading.Event
    deadline: float
    turn: str = ""
    task: Document | None = None
    """Task and project of a byre session."""


class Answers(Protocol):
    """One way to answer calls. Raises nothing: what goes wrong is a result."""

    def call(self, call: Call) -> Document: ...


class ToolKit(NamedTuple):
    """What all sessions of a worker share. `kinds`: who answers bindings of each kind."""

    kinds: dict[str, Answers]
    tokens: Tokens
    cipher: Cipher
    store: Store
    clock: Clock
    public_url: str
    seconds: float


class SessionTools:
    """The tools of one session, for its bridge. `turn` is set by the runner while one is open."""

    def __init__(self, kit: ToolKit, name: LogName, head: LogHead, mailbox: Mailbox, load: Callable[[], LogHead]) -> None:
        self._kit, self._name, self._head, self._mailbox, self._load = kit, name, head, mailbox, load
        self.turn = ""

    def descriptors(self) -> list[Document]:
        """What the model sees."""
        tools: list[Document] = self._head.doc["descriptors"]
        return tools

    def secrets(self) -> list[str]:
        """Every text in the credentials of the session's bindings. Raises Corrupt for one that can't be decrypted."""
        found: list[str] = []
        for alias in self._head.doc.get("credentials", {}):
            try:
                found += texts(self._credential(self._head.doc, alias))
            except Undecryptable as error:
                raise Corrupt(f"the credential of {alias} can't be read: {error}", self._name.text) from error
        return found

    def call(self, name: str, arguments: Any, progress: Callable[[Any], None], cancelled: threading.Event) -> Document:
        """Runs one call to its result."""
        turn = self.turn
        if not turn:
            return text_result("no turn is open: tools can't be called now", error=True)
        if not bounded(arguments):
            return text_result("the arguments have too many levels or values, so the call was not made", error=True)
        made = BridgeCall(turn, self._kit.clock.id(), name, arguments)
        self._mailbox.put([made], size=len(orjson.dumps(arguments)))
        if not self._written(made, cancelled):
            return text_result("the call could not be recorded, so it was not made", error=True)
        told = itertools.count()

        def progressed(data: Any) -> None:
            size = len(orjson.dumps(data))
            if size > PROGRESS_BYTES or next(told) >= MOST_PROGRESS:
                return
            data = self._mask.value(data)
            self._mailbox.put([BridgeProgress(turn, made.id, data)], size=size)
            progress(data)

        try:
            result = self._kept(self._mask.value(self._run(made, progressed, cancelled)))
        except Exception:
            # a bug of ours must not leave the call open
            logger.exception("a tool call failed", session=self._name.session, tool=name)
            result = text_result("the call failed in the server; its outcome is unknown", unknown=True)
        self._mailbox.put([BridgeResult(turn, made.id, result)], size=len(orjson.dumps(result)))
        return result

    @functools.cached_property
    def _mask(self) -> Redactor:
        """Hides the session's credentials: a tool that repeats one would put it into the agent's memory, and so into checkpoints."""
        return Redactor(self.secrets())

    def _written(self, made: BridgeCall, cancelled: threading.Event) -> bool:
        until = time.monotonic() + WRITE_SECONDS
        while not made.written.wait(WRITE_SLICE):
            if cancelled.is_set() or time.monotonic() >= until:
                return False
        return True

    def _run(self, made: BridgeCall, progress: Callable[[Any], None], cancelled: threading.Event) -> Document:
        try:
            doc = self._load().doc
        except ByreError as error:
            return text_result(f"the tool can't be looked up now: {error.message}", error=True)
        route = doc.get("routes", {}).get(made.name)
        if route is None:
            return text_result(f"there is no tool {made.name[:80]!r} in this session", error=True)
        binding, tool = doc["bindings"][route[0]], route[1]
        schema = next(t["input_schema"] for t in binding["tools"] if t["name"] == tool)
        wrong = refusal(schema, made.arguments)
        if wrong:
            return text_result(f"the arguments don't fit the tool's input_schema: {wrong}", error=True)
        answers = self._kit.kinds.get(binding["kind"])
        if answers is None:
            return text_result(f"this worker can't call tools of kind {binding['kind']!r}", error=True)
        return answers.call(
            Call(
                id=made.id,
                binding=binding,
                tool=tool,
                arguments=made.arguments,
                scope=self._scope(made.id),
                credential=self._credential(doc, binding["alias"]),
                progress=progress,
                cancelled=cancelled,
                deadline=time.monotonic() + self._kit.seconds,
                turn=made.turn,
                task=doc.get("task"),
            )
        )

    def _scope(self, call: str) -> Document:
        assert self._name.session
        token = self._kit.tokens.inspection(self._name.tenant, self._name.session, seconds=int(self._kit.seconds) + 5)
        return {
            "tenant_id": self._name.tenant,
            "session_id": self._name.session,
            "call_id": call,
            "inspection_token": token,
            "brain_url": self._kit.public_url,
        }

    def _credential(self, doc: Document, alias: str) -> Any:
        sealed = doc.get("credentials", {}).get(alias)
        if sealed is None:
            return None
        assert self._name.session
        plain = self._kit.cipher.decrypt(base64.b64decode(sealed), credential_context(self._name.session, alias))
        return orjson.loads(plain)

    def _kept(self, result: Document) -> Document:
        raw = orjson.dumps(result)
        if len(raw) <= RESULT_BYTES:
            return result
        blob = self._kit.clock.id()
        try:
            self._kit.store.put(keys.blob(self._name.tenant, blob), raw)
        except StoreError:
            return text_result("the result was too large to show and could not be stored", error=True)
        text = f"The result has {len(raw)} bytes and is kept as blob {blob}."
        return {**text_result(text), **{k: True for k in ("is_error", "unknown_outcome") if result.get(k)}}


def texts(value: Any) -> list[str]:
    """All texts in a JSON value, but for the names of fields."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for part in value for text in texts(part)] if isinstance(value, list) else []
