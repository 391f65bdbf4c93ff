"""Which harnesses a deployment offers, by the names that sessions ask for."""

from __future__ import annotations

from collections.abc import Callable

from app.settings import Settings, SettingsError
from workers.harness import claude
from workers.harness.base import Adapter
from workers.harness.claude_command import ClaudeOptions
from workers.harness.script import ScriptAdapter

Makers = dict[str, Callable[[], Adapter]]


def offered(settings: Settings) -> Makers:
    """A maker of adapters (one object serves one process) for each name in BYRE_HARNESSES. Raises SettingsError for an unknown one."""
    path = settings.search_path  # agents find the same programs as the worker
    known: Makers = {
        "script": ScriptAdapter,
        "claude": claude.maker(_claude(settings, path)),
        **(_acp(settings, path) if settings.acp_agents else {}),
    }
    missing = [name for name in settings.harnesses if name not in known]
    if missing:
        raise SettingsError(f"BYRE_HARNESSES names {missing[0]!r}, which this version can't run; known: {', '.join(known)}")
    return {name: known[name] for name in settings.harnesses}


def _claude(settings: Settings, path: str) -> ClaudeOptions:
    return ClaudeOptions(
        command=settings.claude_command,
        permission_mode=settings.claude_permission_mode,
        tools=() if settings.claude_tools == ("none",) else settings.claude_tools,
        setting_sources=",".join(settings.claude_setting_sources),
        variables=settings.claude_env,
        search_path=path,
        watch_cost=settings.turn_cost_usd > 0,
    )


def _acp(settings: Settings, path: str) -> Makers:
    from workers.harness import acp  # its types take 1.6 s of CPU to load: only where there is such an agent

    options = acp.AcpOptions(allow=settings.acp_permission == "allow", variables=settings.acp_env, search_path=path)
    return {name: acp.maker(name, command, options) for name, command in settings.acp_agents.items()}
