"""Any agent that speaks the Agent Client Protocol, as a harness (docs/harness-acp.md).

ACP is JSON-RPC on stdin and stdout, with requests both ways. The agent names its session itself, so that name is kept beside its
files, and a later process is asked to resume or load it.

Rules: what a turn needs is sent one after the other as the answers come (initialize, session, model, prompt); an agent that can't
load its session begins one without memory, and that is a protocol error that people see; it gets no files and no terminals of ours, it
has its own; what it asks us is always answered.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from acp import schema
from pydantic import ValidationError

from workers.harness.acp_updates import Updates
from workers.harness.acp_wire import Peer, mcp_servers, prompt_of
from workers.harness.base import (
    Done,
    Failed,
    Input,
    Interrupted,
    Keep,
    Output,
    Place,
    ProtocolError,
    RateLimited,
    Send,
    Turn,
)

LINE_LIMIT = 8 << 20
ASKING = "default"
"""The mode in which agents ask before they act, so that the deployment's answer counts; others may act, or refuse, unasked."""
_AUTH_REQUIRED = -32000
_LIMIT_WORDS = ("rate limit", "rate_limit", "429", "overloaded", "529", "usage limit")


@dataclass(frozen=True)
class AcpOptions:
    """What the deployment says. `allow`: whether permissions that the agent asks for are given."""

    allow: bool = True
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    search_path: str = "/usr/local/bin:/usr/bin:/bin"


class AcpAdapter:
    """Adapter of one agent process. Safe for the two threads that use it."""

    line_limit = LINE_LIMIT
    steers = False  # the protocol has no way to do it

    def __init__(self, name: str, command: tuple[str, ...], options: AcpOptions) -> None:
        self.name = name
        self._command, self._options = command, options
        self._lock = threading.RLock()
        self._peer = Peer()
        self._place: Place | None = None
        self._session = ""  # the agent's name of it, once it is open
        self._images = False
        self._models: dict[str, str] = {}  # model -> id of the option that chooses it
        self._model = ""
        self._turn: Turn | None = None
        self._prompting = self._cancelled = False
        self._first = True
        self._updates = Updates(())

    def command(self, place: Place) -> list[str]:
        self._place = place
        self._first = place.fresh
        return list(self._command)

    def environment(self, place: Place) -> dict[str, str]:
        home = str(place.home)
        own = {"PATH": self._options.search_path, "HOME": home, "LANG": "C.UTF-8", "NO_BROWSER": "1"}
        return {**own, **self._options.variables, **place.variables}

    def native_paths(self, place: Place) -> list[Path]:
        """Nobody knows where an agent keeps what it remembers, but it is in its HOME."""
        return [place.home]

    def start_turn(self, turn: Turn) -> bytes:
        with self._lock:
            self._turn, self._cancelled = turn, False
            self._updates = Updates(turn.tools)
            if self._session:
                return self._choose_model()
            capabilities = schema.ClientCapabilities(
                fs=schema.FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
            )
            request = schema.InitializeRequest(
                protocol_version=1,
                client_capabilities=capabilities,
                client_info=schema.Implementation(name="byre", version="1"),
            )
            return self._peer.request("initialize", request, self._initialized)

    def steer(self, steering: Input) -> bytes | None:
        return None

    def interrupt(self) -> bytes | None:
        with self._lock:
            self._cancelled = True
            if not self._prompting:
                return b""  # it is told when it is ready: nothing runs yet
            return self._peer.notify("session/cancel", schema.CancelNotification(session_id=self._session))

    def set_model(self, model: str) -> bytes | None:
        """Chosen when the next turn begins, from its `model`."""
        return b""

    def lost(self, head: bytes, tail: bytes) -> list[Output]:
        """The answer to a prompt is short; if it was that one after all, its id is at one of the ends."""
        with self._lock:
            if self._prompting and b'"stopReason"' in head + tail and b'"session/update"' not in head:
                return self._end(self._updates.done(None))
            return []

    def decode(self, line: bytes) -> list[Output]:
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"not JSON: {error}", line) from error
        if not isinstance(said, dict):
            raise ProtocolError("not an object", line)
        with self._lock:
            try:
                if "method" not in said:
                    return self._peer.answered(said)
                if "id" not in said:
                    return self._told(said)
                return [Send(self._asked(said))]
            except (ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise ProtocolError(f"bad {said.get('method', 'answer')}: {str(error)[:300]}", line) from error

    # The way to a prompt

    def _initialized(self, result: Any, error: Any) -> list[Output]:
        if error:
            return self._refused(error)
        offered = schema.InitializeResponse.model_validate(result).agent_capabilities or schema.AgentCapabilities()
        self._images = bool(offered.prompt_capabilities and offered.prompt_capabilities.image)
        place = self._here()
        kept = place.kept.decode(errors="replace")
        servers, cwd = mcp_servers(place.bridge_socket), str(place.cwd)
        can_resume = offered.session_capabilities is not None and offered.session_capabilities.resume is not None
        if kept and can_resume:
            resume = schema.ResumeSessionRequest(session_id=kept, cwd=cwd, mcp_servers=servers)
            return [Send(self._peer.request("session/resume", resume, functools.partial(self._opened, kept)))]
        if kept and offered.load_session:
            load = schema.LoadSessionRequest(session_id=kept, cwd=cwd, mcp_servers=servers)
            return [Send(self._peer.request("session/load", load, functools.partial(self._opened, kept)))]
        sent = self._new_session()
        if kept:
            self._first = True
            return [
                *sent,
                *self._updates.note("This agent can't load its session: it goes on without memory of what was said."),
            ]
        return sent

    def _new_session(self) -> list[Output]:
        place = self._here()
        request = schema.NewSessionRequest(cwd=str(place.cwd), mcp_servers=mcp_servers(place.bridge_socket))
        return [Send(self._peer.request("session/new", request, functools.partial(self._opened, "")))]

    def _opened(self, kept: str, result: Any, error: Any) -> list[Output]:
        if error and kept:
            return self._end(Failed("native_state_lost", f"the agent can't go on with its session: {_message(error)}"))
        if error:
            return self._refused(error)
        self._session = kept or schema.NewSessionResponse.model_validate(result).session_id
        self._models = _models(result)
        kept_now: list[Output] = [] if kept else [Keep(self._session.encode())]
        if self._cancelled:
            return [*kept_now, *self._end(Interrupted())]
        if ASKING in _modes(result):
            request = schema.SetSessionModeRequest(session_id=self._session, mode_id=ASKING)
            return [*kept_now, Send(self._peer.request("session/set_mode", request, self._mode_set))]
        return [*kept_now, Send(self._choose_model())]

    def _mode_set(self, result: Any, error: Any) -> list[Output]:
        """An agent that refuses it goes on as it is."""
        return self._end(Interrupted()) if self._cancelled else [Send(self._choose_model())]

    def _choose_model(self) -> bytes:
        turn = self._turn
        assert turn
        option = self._models.get(turn.model)
        if option is None or turn.model == self._model:
            return self._prompt()
        request = schema.SetSessionConfigOptionSelectRequest(session_id=self._session, config_id=option, value=turn.model)
        return self._peer.request("session/set_config_option", request, self._model_chosen)

    def _model_chosen(self, result: Any, error: Any) -> list[Output]:
        if error:
            return self._end(Failed("vendor_refused", f"the agent refuses the model: {_message(error)}"))
        if self._turn:
            self._model = self._turn.model
        if self._cancelled:
            return self._end(Interrupted())
        return [Send(self._prompt())]

    def _prompt(self) -> bytes:
        assert self._turn
        self._prompting = True
        blocks = prompt_of(self._turn, instructions=self._here().instructions if self._first else "", images=self._images)
        self._first = False
        request = schema.PromptRequest(session_id=self._session, prompt=blocks)
        return self._peer.request("session/prompt", request, self._prompted)

    def _prompted(self, result: Any, error: Any) -> list[Output]:
        said = self._updates.flush()
        if error:
            return [*said, *self._refused(error)]
        answer = schema.PromptResponse.model_validate(result)
        if answer.stop_reason == "cancelled":
            return [*said, *self._end(Interrupted() if self._cancelled else Failed("agent_error", "the agent gave up"))]
        if answer.stop_reason == "refusal":
            return [*said, *self._end(Failed("refusal", "the model refuses to go on"))]
        if answer.stop_reason == "max_turn_requests":
            return [*said, *self._end(Failed("max_turns", "the agent's own limit of requests ended the turn"))]
        return [*said, *self._end(self._updates.done(answer.usage))]

    def _refused(self, error: Any) -> list[Output]:
        text = _message(error)
        if self._cancelled:
            return self._end(Interrupted())
        if isinstance(error, dict) and error.get("code") == _AUTH_REQUIRED:
            return self._end(Failed("vendor_auth", text))
        if any(word in text.lower() for word in _LIMIT_WORDS):
            return self._end(RateLimited(None, text))
        return self._end(Failed("agent_error", text))

    def _end(self, end: Done | Failed | Interrupted | RateLimited) -> list[Output]:
        was = self._turn
        self._turn, self._prompting = None, False
        return [end] if was else []

    # What it says and asks

    def _told(self, said: dict[str, Any]) -> list[Output]:
        if said["method"] != "session/update":
            return []  # extensions may tell what they like
        update = said["params"]["update"]
        return self._updates.read(update) if self._prompting else []

    def _asked(self, said: dict[str, Any]) -> bytes:
        number = said["id"]
        if said["method"] != "session/request_permission":
            return self._peer.refuse(number, -32601, f"no method {said['method'][:80]}")
        request = schema.RequestPermissionRequest.model_validate(said["params"])
        kinds = ("allow_once", "allow_always") if self._options.allow else ("reject_once", "reject_always")
        chosen = next((option for kind in kinds for option in request.options if option.kind == kind), None)
        outcome: schema.AllowedOutcome | schema.DeniedOutcome
        if chosen is None or self._cancelled or not self._prompting:
            outcome = schema.DeniedOutcome(outcome="cancelled")
        else:
            outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        return self._peer.answer(number, schema.RequestPermissionResponse(outcome=outcome))

    def _here(self) -> Place:
        assert self._place, "started by its command"
        return self._place


def maker(name: str, command: tuple[str, ...], options: AcpOptions) -> Callable[[], AcpAdapter]:
    """Makes one adapter for each process."""
    return functools.partial(AcpAdapter, name, command, options)


def _message(error: Any) -> str:
    """A JSON-RPC error as a text: its message, and details where it has some."""
    if not isinstance(error, dict):
        return str(error)[:500]
    data = error.get("data")
    details = data.get("details", data) if isinstance(data, dict) else data
    return f"{error.get('message', 'no message')}{f': {details}' if details else ''}"[:2000]


def _modes(result: Any) -> set[str]:
    """Which modes the session offers besides the one that it is in."""
    modes = (result or {}).get("modes") or {}
    return {str(mode["id"]) for mode in modes.get("availableModes") or ()} - {modes.get("currentModeId")}


def _models(result: Any) -> dict[str, str]:
    """Which models the session offers, and the option that chooses each."""
    found: dict[str, str] = {}
    for option in (result or {}).get("configOptions") or ():
        if option.get("category") == "model" or option.get("id") == "model":
            for value in option.get("options") or ():
                for one in value.get("options", [value]):
                    found[one["value"]] = option["id"]
    return found
