"""What the tool bridge adds to a harness's own outputs. Each carries its turn: what comes late for another turn is dropped."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BridgeCall:
    """A call over the bridge. `written` is set once its event is in the log: only then is it dispatched."""

    turn: str
    id: str
    name: str
    arguments: Any
    written: threading.Event = field(default_factory=threading.Event, compare=False)


@dataclass(frozen=True, slots=True)
class BridgeProgress:
    """News of a call."""

    turn: str
    id: str
    data: Any


@dataclass(frozen=True, slots=True)
class BridgeResult:
    """The end of a call: a Result of the Brain contract."""

    turn: str
    id: str
    result: dict[str, Any]


Bridged = BridgeCall | BridgeProgress | BridgeResult
