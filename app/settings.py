"""Every setting of Byre, and the only place that reads the environment.

Rules: a setting is one field below: its variable is `BYRE_` and the field's name in upper case; parser, default and meaning
stand beside it, and `docs/configuration.md` has a row for it (a test compares the two). Values are checked once, at start;
what is wrong is one line that says what to do. An empty variable counts as not set.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from app import settings_parse as parse

PREFIX = "BYRE_"
EXIT_STATUS = 4
"""Exit status of a process whose configuration can't work. It is the one at which gunicorn stops instead of trying again."""
_CAP = re.compile(r"^BYRE_CAP_([A-Z0-9_]+)\Z")


class SettingsError(Exception):
    """The configuration can't work. The message is one line that names the variable and says what to do."""


class Entry(NamedTuple):
    """One setting as `byre check` and the documentation show it. `shown` is masked where the setting is a secret."""

    name: str
    default: str
    meaning: str
    shown: str
    given: bool


def _setting(parser: Callable[[str], Any], default: str, meaning: str, *, secret: bool = False, derived: str = "") -> Any:
    """A field. `default` is text as in the environment; `derived` says in words what stands in for an empty one."""
    lists = (parse.names, parse.words, parse.directories, parse.commands, parse.variables)
    metadata = {"parse": parser, "default": default, "meaning": meaning, "secret": secret, "derived": derived}

    def value() -> Any:
        return parser(default) if default or parser in lists else ""

    hidden = secret or parser is parse.redis_address  # an address may carry a password
    return dataclasses.field(default_factory=value, metadata=metadata, repr=not hidden)


@dataclass(frozen=True)
class Settings:
    """The effective configuration of one process. Times are seconds, sizes bytes."""

    # Where state is
    object_store: str = _setting(
        parse.store_address, "", "s3://BUCKET/PREFIX or file:///DIRECTORY: the only durable state", derived="needed"
    )
    s3_endpoint: str = _setting(parse.web_address, "", "address of an S3-compatible service other than AWS", derived="AWS")
    s3_region: str = _setting(parse.text, "", "region of the bucket", derived="as the AWS SDK finds it")
    redis_url: str = _setting(parse.redis_address, "", "redis://, rediss:// or unix://; must not evict keys", derived="needed")
    redis_prefix: str = _setting(parse.prefix, "byre", "first part of every Redis key; one per deployment on a shared Redis")
    secret_key: str = _setting(
        parse.secret, "", "signs short-lived tokens, encrypts credentials and native state", secret=True, derived="needed"
    )
    data: Path = _setting(
        parse.directory, "~/.local/share/byre", "where `byre dev` keeps its state, and the other commands look for it"
    )
    workspaces: Path = _setting(
        parse.directory, "", "a worker's mirrors, worktrees and harness homes", derived="`workspaces` under BYRE_DATA"
    )

    # The HTTP tier
    host: str = _setting(parse.text, "127.0.0.1", "address that the API listens on")
    port: int = _setting(parse.whole(0, 65535), "8080", "port that the API listens on")
    public_url: str = _setting(
        parse.web_address,
        "",
        "address under which clients and tool endpoints reach this API",
        derived="BYRE_HOST and BYRE_PORT",
    )
    api_processes: int = _setting(parse.whole(1, 64), "1", "server processes of one `byre api`; about one per core")
    body_limit: int = _setting(parse.size(1024, 2**30), "1MiB", "largest request body")
    max_streams: int = _setting(parse.whole(1, 1_000_000), "12000", "live streams that one server process holds")
    max_streams_per_token: int = _setting(parse.whole(1, 1_000_000), "10000", "live streams of one token in one server process")
    max_queue: int = _setting(parse.whole(1, 1_000_000), "1000", "inputs that may wait in one session")

    # Agents
    vendor: str = _setting(parse.name, "claude", "harness of byre agent sessions; `byre dev` uses script unless this is set")
    harnesses: tuple[str, ...] = _setting(
        parse.names, "", "harnesses that sessions may ask for, separated by commas", derived="BYRE_VENDOR and BYRE_ACP_AGENTS"
    )
    claude_command: tuple[str, ...] = _setting(parse.command, "claude", "command line of the Claude Code CLI")
    claude_permission_mode: str = _setting(
        parse.word("acceptEdits", "auto", "bypassPermissions", "dontAsk", "plan"),
        "bypassPermissions",
        "what Claude Code may do without asking; where it would ask it is refused",
    )
    claude_tools: tuple[str, ...] = _setting(
        parse.words, "default", "Claude Code's own tools that agents have, separated by commas; default or none"
    )
    claude_setting_sources: tuple[str, ...] = _setting(
        parse.words, "user", "settings files Claude Code reads: user, project, local; project runs hooks of the repository"
    )
    claude_env: Mapping[str, str] = _setting(
        parse.variables,
        "",
        "further variables of Claude Code's environment: NAME=VALUE, separated by semicolons",
        secret=True,
        derived="none",
    )
    anthropic_api_key: str = _setting(
        parse.text, "", "key of Claude Code where a tenant has none (`byre key set`)", secret=True, derived="none"
    )
    acp_agents: Mapping[str, tuple[str, ...]] = _setting(
        parse.commands, "", "further agents that speak ACP: NAME=COMMAND, separated by semicolons", derived="none"
    )
    acp_permission: str = _setting(
        parse.choice("allow", "deny"), "allow", "what an ACP agent is answered when it asks for a permission: allow or deny"
    )
    acp_env: Mapping[str, str] = _setting(
        parse.variables,
        "",
        "further variables of ACP agents' environment: NAME=VALUE, separated by semicolons",
        secret=True,
        derived="none",
    )
    catalog: str = _setting(parse.file_address, "", "file or s3:// object that lists tool providers", derived="no providers")
    sandbox: str = _setting(parse.choice("none", "bwrap"), "none", "isolation of harness processes: none or bwrap")
    turn_seconds: float = _setting(parse.seconds(1, 604_800), "3600", "a turn that takes longer is ended")
    turn_tokens: int = _setting(
        parse.whole(0, 10**12), "0", "a turn that uses more tokens is ended, where the agent reports them; 0: no limit"
    )
    turn_cost_usd: float = _setting(
        parse.amount(0, 1_000_000),
        "0",
        "a turn that costs more US dollars is ended, where the agent reports costs; 0: no limit",
    )
    stuck_after_seconds: float = _setting(
        parse.seconds(1, 604_800), "300", "a running turn without output this long shows as stuck"
    )

    # Repositories and outgoing calls
    repo_roots: tuple[Path, ...] = _setting(
        parse.directories,
        "",
        "directories whose repositories may be projects, separated by colons",
        derived="none: git URLs only",
    )
    outgoing_allow: tuple[str, ...] = _setting(
        parse.words,
        "",
        "hosts (HOST or HOST:PORT) and certificates (paths of PEM files) allowed although not public https",
        derived="none",
    )

    push_contact: str = _setting(
        parse.text, "", "mailto: or https: address where push services reach who runs this server", derived="BYRE_PUBLIC_URL"
    )

    # Workers
    worker_slots: int = _setting(parse.whole(1, 1024), "8", "sessions that one worker runs at once")
    cap_global: int = _setting(parse.whole(1, 1_000_000), "100", "turns that run at once in the deployment")
    caps: Mapping[str, int] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    lease_seconds: float = _setting(parse.seconds(1, 3600), "15", "a worker that is silent this long loses its sessions")
    sweep_seconds: float = _setting(
        parse.seconds(0.1, 3600), "", "how often a worker looks for lost sessions", derived="a third of BYRE_LEASE_SECONDS"
    )
    warm_seconds: float = _setting(parse.seconds(0, 86_400), "30", "an agent process is kept this long after its turn")
    drain_seconds: float = _setting(parse.seconds(0, 86_400), "20", "time for running turns when a worker is told to stop")
    max_attempts: int = _setting(parse.whole(1, 1000), "3", "workers that one turn may cost before its session fails")

    disk_budget: int = _setting(
        parse.size(0, 2**50), "0", "what worktrees may take on a worker's disk before those at rest leave it; 0: no limit"
    )

    # Retention
    keep_checkpoints: str = _setting(
        parse.kept, "all", "checkpoints of a session that `byre gc` keeps: all, a number, or days such as 30d"
    )
    trash_days: int = _setting(parse.whole(1, 3650), "7", "days in which what `byre gc` has moved away can be brought back")

    # Logs
    log_format: str = _setting(
        parse.choice("json", "console"), "json", "json or console; `byre dev` uses console unless this is set"
    )
    log_level: str = _setting(parse.choice("debug", "info", "warning", "error"), "info", "debug, info, warning or error")

    # The command line
    url: str = _setting(parse.web_address, "", "API that `byre tail` talks to", derived="the running `byre dev`")
    token: str = _setting(parse.text, "", "token that `byre tail` sends", secret=True, derived="the running `byre dev`'s")

    given: frozenset[str] = frozenset()
    notify_socket: str = ""
    search_path: str = "/usr/local/bin:/usr/bin:/bin"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Parses the `BYRE_*` variables of `env`. Raises `SettingsError` for a bad one; `unknown` finds strange ones."""
        values: dict[str, Any] = {"given": set(), "notify_socket": env.get("NOTIFY_SOCKET", "")}
        if env.get("PATH"):
            values["search_path"] = env["PATH"]
        for field in _fields():
            variable = PREFIX + field.name.upper()
            raw = env.get(variable, "").strip()
            if raw:
                values[field.name] = _parsed(variable, field.metadata["parse"], raw)
                values["given"].add(variable)
        caps = {}
        for variable, raw in env.items():
            found = _CAP.match(variable)
            if found and variable != "BYRE_CAP_GLOBAL" and raw.strip():
                caps[found[1].lower().replace("_", "-")] = _parsed(variable, parse.whole(1, 1_000_000), raw.strip())
                values["given"].add(variable)
        values["caps"] = MappingProxyType(caps)
        values["given"] = frozenset(values["given"])
        return cls(**values)._derive()

    def _derive(self) -> Settings:
        """Fills in the defaults that depend on other settings."""
        changes: dict[str, Any] = {}
        if not self.workspaces:
            changes["workspaces"] = self.data / "workspaces"
        if not self.public_url:
            host = f"[{self.host}]" if ":" in self.host else self.host
            changes["public_url"] = f"http://{host}:{self.port}"
        if not self.harnesses:
            changes["harnesses"] = tuple(dict.fromkeys([self.vendor, *self.acp_agents]))
        if not self.sweep_seconds:
            changes["sweep_seconds"] = self.lease_seconds / 3
        if not self.s3_region and self.object_store.startswith("s3://") and self.s3_endpoint:
            changes["s3_region"] = "us-east-1"  # stand-ins of S3 take any region, but signing needs one
        return dataclasses.replace(self, **changes)

    def require(self, *attributes: str) -> None:
        """Raises `SettingsError` for the first of `attributes` that has no value."""
        for attribute in attributes:
            if not getattr(self, attribute):
                raise SettingsError(_MISSING[attribute])

    def entries(self) -> list[Entry]:
        """Every setting with its effective value, in the order of the documentation. Secrets are masked."""
        rows = []
        for field in _fields():
            variable = PREFIX + field.name.upper()
            default = field.metadata["default"] or field.metadata["derived"]
            shown = _shown(getattr(self, field.name), secret=field.metadata["secret"])
            rows.append(Entry(variable, default, field.metadata["meaning"], shown, variable in self.given))
        rows += [
            Entry(PREFIX + "CAP_" + vendor.upper().replace("-", "_"), "", "", str(cap), True)
            for vendor, cap in self.caps.items()
        ]
        return rows


_MISSING = {
    "object_store": "BYRE_OBJECT_STORE is not set: give s3://BUCKET/PREFIX or file:///DIRECTORY (`byre dev` brings its own)",
    "redis_url": "BYRE_REDIS_URL is not set: give redis://HOST:PORT/0 or rediss://HOST:PORT/0 (`byre dev` brings its own)",
    "secret_key": "BYRE_SECRET_KEY is not set: make one with `openssl rand -hex 32` and give every process the same",
}


def _fields() -> Iterator[dataclasses.Field[Any]]:
    return (field for field in dataclasses.fields(Settings) if "parse" in field.metadata)


def _parsed(variable: str, parser: Callable[[str], Any], raw: str) -> Any:
    try:
        return parser(raw)
    except ValueError as error:
        raise SettingsError(f"{variable} {error}") from None


def _shown(value: Any, *, secret: bool) -> str:
    if secret:
        return "***" if value else ""
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{key}={' '.join(parts)}" for key, parts in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return parse.mask_address(str(value))


def unknown(env: Mapping[str, str]) -> list[str]:
    """A line for each `BYRE_*` variable that no setting has, with the nearest name if there is one."""
    known = [PREFIX + field.name.upper() for field in _fields()]
    lines = []
    for variable in sorted(env):
        if variable.startswith(PREFIX) and variable not in known and not _CAP.match(variable):
            near = difflib.get_close_matches(variable, known, 1)
            lines.append(f"{variable} is not a setting of Byre" + (f": did you mean {near[0]}?" if near else ""))
    return lines


def environment() -> dict[str, str]:
    """A copy of this process's environment, for `from_env` and for starting children."""
    return dict(os.environ)


def load() -> Settings:
    """The settings of this process. Raises `SettingsError`."""
    return Settings.from_env(os.environ)
