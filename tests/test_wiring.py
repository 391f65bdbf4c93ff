"""The start-up checks: what a deployment stands on is proven before anything is served, and each refusal says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from app import redis_server, wiring
from app.settings import Settings, SettingsError
from app.store.memory import MemoryStore
from tests.support.dev import BYRE, environment
from tests.support.redis_server import private_redis

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with private_redis() as server:
        yield server.url


@pytest.fixture
def evicting(redis_url: str) -> Iterator[str]:
    client = redis.Redis.from_url(redis_url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    yield redis_url
    client.config_set("maxmemory-policy", "noeviction")
    client.close()


def settings(store: Path, redis_url: str) -> Settings:
    return Settings.from_env({"BYRE_OBJECT_STORE": str(store), "BYRE_REDIS_URL": redis_url, "BYRE_SECRET_KEY": KEY})


class Careless(MemoryStore):
    """A store that takes conditions and ignores them."""

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        return super().put(key, body, put_id=put_id)


def test_good_ones_connect(tmp_path: Path, redis_url: str) -> None:
    base = wiring.connect(settings(tmp_path / "store", redis_url), "api")
    try:
        assert [name for name, ask in wiring.readiness(base).items() if ask() is None] == ["redis", "store"]
        names = {str(entry["name"]) for entry in base.redis.client_list()}
        assert "byre-api" in names
    finally:
        base.close()


def test_the_client_of_redis_never_retries_and_never_waits_without_limit(tmp_path: Path, redis_url: str) -> None:
    client = wiring.redis_of(settings(tmp_path, redis_url), "test")
    connection: Any = client.connection_pool.make_connection()
    assert connection.retry.get_retries() == 0
    assert connection.socket_timeout == wiring.REDIS_TIMEOUT
    assert connection.socket_connect_timeout == wiring.REDIS_CONNECT_TIMEOUT
    client.close()


def test_a_redis_that_evicts_is_refused(tmp_path: Path, evicting: str) -> None:
    with pytest.raises(SettingsError, match=r"evicts keys .maxmemory-policy allkeys-lru.*set it to noeviction"):
        wiring.connect(settings(tmp_path / "store", evicting), "api")


def test_no_redis_is_refused_without_its_password(tmp_path: Path) -> None:
    given = settings(tmp_path, "redis://:hunter2hunter2@127.0.0.1:1/0")
    client = wiring.redis_of(given, "api")
    with pytest.raises(SettingsError, match="does not answer") as caught:
        wiring.check_redis(given, client)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "open_store", lambda *_, **__: Careless())
    with pytest.raises(SettingsError, match=r"^BYRE_OBJECT_STORE .* ignores If-None-Match"):
        wiring.connect(settings(tmp_path, redis_url), "api")


def test_a_store_that_can_not_be_made_is_refused(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="can't be used"):
        wiring.connect(settings(tmp_path / "file" / "store", redis_url), "api")


@pytest.mark.parametrize("role", ["api", "worker"])
def test_the_processes_refuse_with_one_line_and_no_traceback(role: str, tmp_path: Path, evicting: str) -> None:
    env = environment(
        {
            "BYRE_OBJECT_STORE": str(tmp_path / "store"), "BYRE_REDIS_URL": evicting, "BYRE_SECRET_KEY": KEY, "BYRE_PORT": "0",
            "BYRE_VENDOR": "script", "BYRE_WORKSPACES": str(tmp_path / "workspaces"), "BYRE_LOG_LEVEL": "error",
        }
    )  # fmt: skip
    done = subprocess.run([*BYRE, role], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]  # gunicorn's own words are log lines
    assert len(lines) == 1, done.stderr
    assert "set it to noeviction" in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("role", ["api", "worker"])
@pytest.mark.parametrize("variable", ["BYRE_OBJECT_STORE", "BYRE_REDIS_URL", "BYRE_SECRET_KEY"])
def test_the_processes_need_their_settings(role: str, variable: str, tmp_path: Path) -> None:
    env = {"BYRE_OBJECT_STORE": str(tmp_path), "BYRE_REDIS_URL": "redis://127.0.0.1:1/0", "BYRE_SECRET_KEY": KEY}
    del env[variable]
    done = subprocess.run([*BYRE, role], env=environment(env), capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"byre: {variable} is not set: ")
    assert len(done.stderr.splitlines()) == 1


def test_where_no_socket_path_is_short_enough_redis_is_behind_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
    server = redis_server.prepare(long / "redis")
    process = subprocess.Popen(server.argv, stdout=sys.stderr)
    try:
        client = wiring.redis_of(settings(tmp_path, server.url), "test")
        wiring.check_redis(settings(tmp_path, server.url), client, 10)
        client.close()
        bare = redis.Redis.from_url(server.url.split("@")[0].split(":")[0] + "://" + server.url.split("@")[1])
        with pytest.raises(redis.AuthenticationError):
            bare.ping()
        bare.close()
    finally:
        process.kill()
        process.wait()


def test_a_socket_directory_of_someone_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    data = tmp_path / ("long-" * 30)
    theirs = redis_server._private_directory(data)
    theirs.chmod(0o777)
    with pytest.raises(SettingsError, match="belongs to someone else"):
        redis_server.prepare(data)
