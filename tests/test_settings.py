"""Settings: what is accepted, what is refused and with which words, and that nothing else reads the environment."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from app import settings as module
from app.settings import Settings, SettingsError, unknown

ROOT = Path(__file__).resolve().parents[1]


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.lease_seconds == 15
    assert settings.sweep_seconds == 5
    assert settings.worker_slots == 8
    assert settings.body_limit == 2**20
    assert settings.redis_prefix == "byre"
    assert settings.public_url == "http://127.0.0.1:8080"
    assert settings.workspaces == settings.data / "workspaces"
    assert settings.harnesses == ("claude",)
    assert settings == Settings.from_env({"BYRE_PORT": "", "BYRE_VENDOR": "  "})


def test_every_setting_can_be_given() -> None:
    given = {
        "BYRE_OBJECT_STORE": "s3://bucket/prefix",
        "BYRE_S3_ENDPOINT": "http://127.0.0.1:9000/",
        "BYRE_REDIS_URL": "rediss://:pw@cache.example:6380/0",
        "BYRE_ACP_AGENTS": "codex=codex-acp --flag 'a b'; gemini = gemini --acp",
        "BYRE_CLAUDE_COMMAND": "/opt/claude/bin/claude --debug",
        "BYRE_REPO_ROOTS": "/srv/a:/srv/b",
        "BYRE_OUTGOING_ALLOW": "localhost:8443, /etc/ssl/own.pem",
        "BYRE_HARNESSES": "claude,codex,claude",
        "BYRE_CAP_GLOBAL": "12",
        "BYRE_CAP_CLAUDE": "4",
        "BYRE_CAP_MY_AGENT": "2",
        "BYRE_BODY_LIMIT": "2 MiB",
        "BYRE_LOG_FORMAT": "Console",
    }
    settings = Settings.from_env(given)
    assert settings.s3_endpoint == "http://127.0.0.1:9000"
    assert settings.s3_region == "us-east-1"
    assert settings.acp_agents == {"codex": ("codex-acp", "--flag", "a b"), "gemini": ("gemini", "--acp")}
    assert settings.claude_command == ("/opt/claude/bin/claude", "--debug")
    assert settings.repo_roots == (Path("/srv/a"), Path("/srv/b"))
    assert settings.outgoing_allow == ("localhost:8443", "/etc/ssl/own.pem")
    assert settings.harnesses == ("claude", "codex")
    assert settings.cap_global == 12
    assert settings.caps == {"claude": 4, "my-agent": 2}
    assert settings.body_limit == 2 * 2**20
    assert settings.log_format == "console"
    assert settings.given == frozenset(given)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("BYRE_PORT", "eighty", "whole number"),
        ("BYRE_PORT", "70000", "from 0 to 65535"),
        ("BYRE_LEASE_SECONDS", "nan", "from 1 to 3600"),
        ("BYRE_LEASE_SECONDS", "soon", "number of seconds"),
        ("BYRE_WORKER_SLOTS", "0", "from 1"),
        ("BYRE_CAP_CLAUDE", "-1", "from 1"),
        ("BYRE_BODY_LIMIT", "1 MB", "1MiB"),
        ("BYRE_REDIS_URL", "http://127.0.0.1:6379", "redis://"),
        ("BYRE_REDIS_URL", "redis://127.0.0.1:x/0", "not an address"),
        ("BYRE_OBJECT_STORE", "bucket", "s3://BUCKET/PREFIX"),
        ("BYRE_OBJECT_STORE", "file://data", "file:///DIRECTORY"),
        ("BYRE_S3_ENDPOINT", "minio:9000", "https://"),
        ("BYRE_SECRET_KEY", "short", "at least 16 characters"),
        ("BYRE_WORKSPACES", "work", "absolute path"),
        ("BYRE_REPO_ROOTS", "/srv:here", "absolute path"),
        ("BYRE_VENDOR", "Claude Code", "name"),
        ("BYRE_ACP_AGENTS", "codex", "NAME=COMMAND"),
        ("BYRE_CLAUDE_COMMAND", "claude 'open", "command line"),
        ("BYRE_REDIS_PREFIX", "{byre}", "letters"),
        ("BYRE_LOG_FORMAT", "xml", "json, console"),
        ("BYRE_KEEP_CHECKPOINTS", "0", "30d"),
        ("BYRE_KEEP_CHECKPOINTS", "a few", "30d"),
        ("BYRE_TRASH_DAYS", "0", "from 1"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(variable: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: value})
    line = str(caught.value)
    assert line.startswith(variable + " ")
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize("attribute", ["object_store", "redis_url", "secret_key"])
def test_what_is_needed_is_named_with_what_to_do(attribute: str) -> None:
    with pytest.raises(SettingsError, match=f"BYRE_{attribute.upper()} is not set: "):
        Settings.from_env({}).require(attribute)


def test_secrets_are_never_shown() -> None:
    secret = "5ecret-" * 4
    settings = Settings.from_env(
        {"BYRE_SECRET_KEY": secret, "BYRE_TOKEN": secret, "BYRE_REDIS_URL": f"redis://user:{secret}@127.0.0.1:1/0"}
    )
    assert secret not in repr(settings)
    assert all(secret not in entry.shown for entry in settings.entries())
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"BYRE_REDIS_URL": f"ftp://user:{secret}@127.0.0.1"})
    assert secret not in str(caught.value)


def test_an_unknown_variable_is_reported_with_the_nearest_name() -> None:
    lines = unknown({"BYRE_LEASE_SECOND": "1", "BYRE_CAP_CODEX": "1", "BYRE_PORT": "1", "BYRE_XYZZY": "1", "PATH": "/bin"})
    assert lines == [
        "BYRE_LEASE_SECOND is not a setting of Byre: did you mean BYRE_LEASE_SECONDS?",
        "BYRE_XYZZY is not a setting of Byre",
    ]


def test_entries_cover_every_field() -> None:
    own = {"given", "notify_socket", "search_path", "caps"}  # not settings of their own
    fields = {"BYRE_" + field.name.upper() for field in dataclasses.fields(Settings) if field.name not in own}
    assert {entry.name for entry in Settings.from_env({}).entries()} == fields
    assert all(entry.meaning for entry in Settings.from_env({}).entries())


def test_only_the_settings_module_reads_the_environment() -> None:
    readers = []
    for path in sorted((ROOT / "app").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("environ", "environb", "getenv")
                and isinstance(node.value, ast.Name)
            ):
                readers.append(path)
    assert set(readers) == {Path(module.__file__)}
