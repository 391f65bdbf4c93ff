"""How the Claude Code CLI is started: command line, environment, and where its native state is.

Rules: what a repository brings along is text to the agent and never configuration: its `.claude/settings.json` (hooks, helpers, its
own environment) and `.mcp.json` are not read, its `CLAUDE.md` is. Nothing runs between turns: what would wake the agent by itself is
off. Values from users are given as `--name=value`, so that none is taken for an option. The environment is whole: nothing is inherited.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from workers.harness.base import Place

MCP_SERVER = Path(__file__).resolve().parent.parent / "bridge" / "mcp_server.py"
MCP_NAME = "byre"
MCP_PREFIX = f"mcp__{MCP_NAME}__"
PERMISSION_MODES = ("acceptEdits", "auto", "bypassPermissions", "dontAsk", "plan")

_NEVER = (
    "CronCreate", "CronDelete", "CronList", "ScheduleWakeup", "Monitor", "EnterWorktree", "ExitWorktree", "ListAgents", "SendMessage",
    "EnterPlanMode", "ExitPlanMode",
)  # fmt: skip
"""Built-in tools that would wake the agent without a turn, leave the workspace, speak to other sessions, or wait for a permission."""
_ASKS = ("--permission-prompts=host", "--permission-prompt-tool=stdio")
"""Only so does it offer its question tool. Permissions are denied all the same."""
_ASKS_NOBODY = ("--permission-prompts=none",)
_FLAGS = {
    "IS_SANDBOX": "1",  # or it refuses bypassPermissions to root, as whom containers run
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",  # its memory is the conversation, no more and no less
    "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1",
    "ENABLE_TOOL_SEARCH": "false",  # the session's tools are few, and the model is to see them all
    "CLAUDE_CODE_EAGER_FLUSH": "1",  # the transcript is on disk before the result is told
    "CLAUDE_CODE_MAX_RETRIES": "4",  # about eight seconds of retries, then the turn is ours to judge
    "MCP_TOOL_TIMEOUT": "3600000",  # ms; the worker's own deadlines are shorter
}


@dataclass(frozen=True)
class ClaudeOptions:
    """What the deployment says. `tools`: built-in tools that agents have, ("default",) for the usual set, () for none.

    `variables` come after the flags of this file, so they win; `watch_cost` asks it for its costs while a turn runs.
    """

    command: tuple[str, ...] = ("claude",)
    permission_mode: str = "bypassPermissions"
    tools: tuple[str, ...] = ("default",)
    setting_sources: str = "user"
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    search_path: str = "/usr/local/bin:/usr/bin:/bin"
    watch_cost: bool = False


def vendor_session(session_id: str) -> str:
    """The CLI's id of a session, a UUID: ours in its spelling (one derived from it, if ours isn't 32 hex digits)."""
    try:
        return str(uuid.UUID(hex=session_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"byre:{session_id}"))


def command(options: ClaudeOptions, place: Place) -> list[str]:
    """The command line, for a fresh conversation or to go on with one."""
    line = [
        *options.command, "-p", "--input-format=stream-json", "--output-format=stream-json", "--verbose",
        "--include-partial-messages", "--replay-user-messages", "--strict-mcp-config",
        f"--setting-sources={options.setting_sources}", "--add-dir=.",
        f"--permission-mode={options.permission_mode}", *(_ASKS if place.people else _ASKS_NOBODY),
        f"--tools={','.join(options.tools)}", f"--disallowedTools={','.join(_NEVER)}", f"--allowedTools=mcp__{MCP_NAME}",
        f"--{'session-id' if place.fresh else 'resume'}={vendor_session(place.session_id)}",
    ]  # fmt: skip
    if place.bridge_socket:
        line.append(f"--mcp-config={_mcp_config(place.bridge_socket)}")
    for option, value in (
        ("model", place.model),
        ("effort", place.reasoning_effort),
        ("append-system-prompt", place.instructions),
    ):
        if value:
            line.append(f"--{option}={value}")
    return line


def environment(options: ClaudeOptions, place: Place) -> dict[str, str]:
    """The whole environment. Model keys come in `place.variables`."""
    own = {
        "PATH": options.search_path,
        "HOME": str(place.home),
        "LANG": "C.UTF-8",
        "CLAUDE_CONFIG_DIR": str(place.home / "claude"),
        "CLAUDE_CODE_TMPDIR": str(place.home / "tmp"),
    }
    return {**own, **_FLAGS, **options.variables, **place.variables}


def native_paths(place: Place) -> list[Path]:
    """Transcripts: of the conversation, of agents that it started, and long tool results. The folder is the session's own."""
    return [place.home / "claude" / "projects"]


def _mcp_config(bridge: Path) -> str:
    server = {
        "type": "stdio",
        "command": sys.executable,
        "args": ["-I", "-S", str(MCP_SERVER)],
        "env": {"BYRE_BRIDGE": str(bridge)},
    }
    return orjson.dumps({"mcpServers": {MCP_NAME: server}}).decode()
