"""Which harnesses a deployment offers, by the names that sessions ask for."""

from __future__ import annotations

from collections.abc import Callable

from app.settings import Settings, SettingsError
from workers.harness.base import Adapter
from workers.harness.script import ScriptAdapter


def offered(settings: Settings) -> dict[str, Callable[[], Adapter]]:
    """A maker of adapters (one object serves one process) for each name in BYRE_HARNESSES. Raises SettingsError for an unknown one."""
    known: dict[str, Callable[[], Adapter]] = {"script": ScriptAdapter}
    missing = [name for name in settings.harnesses if name not in known]
    if missing:
        raise SettingsError(f"BYRE_HARNESSES names {missing[0]!r}, which this version can't run; known: {', '.join(known)}")
    return {name: known[name] for name in settings.harnesses}
