"""The `byre` command: tokens, the check, what a session looks like in a terminal, and how mistakes are answered."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.cli_screen import Screen
from app.core.errors import Unauthorized
from app.services.tokens import Tokens
from app.store.open import open_store
from tests.support.dev import BYRE, environment
from tests.support.redis_server import private_redis

KEY = "0123456789abcdef0123456789abcdef"


def byre(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BYRE, *arguments], env=environment(env), capture_output=True, text=True, timeout=60)


def test_a_token_is_made_listed_and_revoked(tmp_path: Path) -> None:
    env = {"BYRE_OBJECT_STORE": str(tmp_path), "BYRE_SECRET_KEY": KEY}
    made = byre("token", "create", "--tenant", "acme", "--login", "ada", "--name", "laptop", "--days", "30", **env)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    store = open_store(str(tmp_path))
    principal = Tokens(store, KEY).authenticate(token)
    assert (principal.tenant, principal.scope, principal.login) == ("acme", "user", "ada")

    listed = byre("token", "list", "--tenant", "acme", **env).stdout
    assert principal.token_id in listed
    assert "laptop" in listed
    assert "until" in listed
    assert token not in listed
    assert principal.token_id not in byre("token", "list", "--tenant", "other", **env).stdout

    refused = byre("token", "revoke", principal.token_id, "--tenant", "other", **env)
    assert (refused.returncode, refused.stderr) == (1, "byre: no such token\n")
    assert byre("token", "revoke", principal.token_id, **env).returncode == 0
    with pytest.raises(Unauthorized):
        Tokens(store, KEY).authenticate(token)
    assert "revoked" in byre("token", "list", "--tenant", "acme", **env).stdout


def test_a_user_token_without_a_login_is_one_line(tmp_path: Path) -> None:
    done = byre("token", "create", "--tenant", "acme", BYRE_OBJECT_STORE=str(tmp_path), BYRE_SECRET_KEY=KEY)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "byre: a user token needs a login\n"


def test_without_a_store_named_it_is_about_the_data_of_byre_dev(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "secret-key").write_text(KEY + "\n")
    made = byre("token", "create", "--tenant", "acme", "--scope", "management", BYRE_DATA=str(tmp_path), BYRE_OBJECT_STORE=" ")
    assert made.returncode == 0 and f"this is about the `byre dev` in {tmp_path}" in made.stderr, made.stderr
    assert Tokens(open_store(str(tmp_path / "store")), KEY).authenticate(made.stdout.strip()).tenant == "acme"
    other = {"BYRE_OBJECT_STORE": str(tmp_path / "other"), "BYRE_SECRET_KEY": KEY}
    listed = byre("token", "list", "--tenant", "acme", BYRE_DATA=str(tmp_path), **other)
    assert "management" not in listed.stdout and listed.stderr == ""
    nowhere = byre("gc", BYRE_DATA=str(tmp_path / "nowhere"))
    assert nowhere.returncode == 4 and "BYRE_OBJECT_STORE is not set" in nowhere.stderr


def test_check_shows_all_that_is_wrong_and_no_secret(tmp_path: Path) -> None:
    done = byre(
        "check", BYRE_OBJECT_STORE=str(tmp_path / "store"), BYRE_SECRET_KEY=KEY, BYRE_REDIS_URL="redis://:hunter22@127.0.0.1:1/0",
        BYRE_REPO_ROOTS=str(tmp_path / "gone"), BYRE_WORKSPACE="typo", BYRE_VENDOR="script",
    )  # fmt: skip
    assert done.returncode == 1
    out = done.stdout
    assert KEY not in out
    assert "hunter22" not in out
    assert "ok           object store: enforces conditional writes" in out
    assert "wrong        redis: Redis at redis://:***@127.0.0.1:1/0 does not answer" in out
    assert "wrong        repositories: BYRE_REPO_ROOTS names" in out
    assert "warning      BYRE_WORKSPACE is not a setting of Byre: did you mean BYRE_WORKSPACES?" in out


def test_check_of_a_good_deployment_succeeds(tmp_path: Path) -> None:
    with private_redis() as server:
        done = byre(
            "check", BYRE_OBJECT_STORE=str(tmp_path / "s"), BYRE_SECRET_KEY=KEY, BYRE_REDIS_URL=server.url, BYRE_VENDOR="script",
            BYRE_WORKSPACES=str(tmp_path / "w"),
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "wrong" not in done.stdout


def test_tail_without_anything_to_ask_says_what_to_do(tmp_path: Path) -> None:
    done = byre("tail", "0" * 32, "--data", str(tmp_path))
    assert done.returncode == 4
    assert "start one, or set BYRE_URL and BYRE_TOKEN" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("token",), ("dev", "--port", "x"), ("dev", "--workers", "0"), ("nothing",)])
def test_wrong_arguments_are_refused_with_the_usage(arguments: tuple[str, ...]) -> None:
    done = byre(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: byre")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screened(out: io.StringIO, *events: tuple[str, Mapping[str, object]]) -> str:
    screen = Screen(out)
    for type, data in events:
        screen.show(type, {"data": dict(data)})
    return out.getvalue()


def test_an_answer_is_shown_once_whether_it_came_in_pieces_or_whole() -> None:
    whole = ("assistant.message", {"text": "hello world"})
    assert screened(io.StringIO(), whole) == "hello world\n"
    assert screened(io.StringIO(), ("assistant.delta", {"text": "hello "}), whole) == "hello world\n"
    assert screened(io.StringIO(), ("assistant.delta", {"text": "lost"}), whole) == "lost\nhello world\n"
    cut = screened(io.StringIO(), ("assistant.delta", {"text": "hel"}), ("turn.interrupted", {"reason": "user"}))
    assert cut == "hel\nturn.interrupted: user\n"


def test_agents_can_not_drive_the_terminal() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\u202etxt\r"
    shown = screened(
        Terminal(), ("assistant.message", {"text": hostile}), ("tool.result", {"result": {"content": [{"text": hostile}]}})
    )
    colours_removed = shown.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert "\x1b" not in colours_removed
    assert "\u202e" not in shown
    assert "\\u001b" in shown


def test_colours_only_on_a_terminal() -> None:
    event = ("user.message", {"text": "hi"})
    assert screened(io.StringIO(), event) == "> hi\n"
    assert screened(Terminal(), event) == "\x1b[1m> hi\x1b[0m\n"


def test_an_event_of_an_unknown_type_is_shown_all_the_same() -> None:
    assert screened(io.StringIO(), ("something.new", {"a": 1})) == 'something.new {"a": 1}\n'
