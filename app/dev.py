"""`byre dev`: the whole product on one machine, needing only Python and git.

Rules: every child is what production runs, told where things are by the same `BYRE_*` variables; what the user has set in the
environment wins. All state is in one data directory and survives a restart, also one by `kill -9`.
"""

from __future__ import annotations

import getpass
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app import dev_data, processes, redis_server
from app.core.errors import ByreError
from app.core.principal import Scope
from app.dev_child import Child
from app.dev_data import DataDirectory
from app.dev_output import Output
from app.dev_probe import ApiProbe, redis_accepts
from app.dev_supervisor import StartFailed, Supervisor
from app.settings import EXIT_STATUS, Settings, SettingsError, unknown
from app.store.contract import StoreError

TENANT = "dev"
DRAIN_SECONDS = "2"
"""Time that running turns get when `byre dev` stops. Interrupting them takes some more of the ten seconds of the whole stop."""
PORT_PATIENCE = 5.0
"""Seconds that a start waits for its port, which a server that was just killed may still hold."""


@dataclass(frozen=True)
class Options:
    """The flags of `byre dev`. `port` 0 means any free one; `ready_file` defaults to `ready.json` in `data`."""

    host: str
    port: int
    data: Path
    workers: int
    ready_file: Path


def run(options: Options, env: Mapping[str, str]) -> int:
    """Runs until told to stop; returns the exit status. `env` is the environment of the children, before our additions."""
    if not shutil.which("git"):
        raise SettingsError("git is not on PATH: install it")
    if not options.ready_file.parent.is_dir() and options.ready_file.parent != options.data:
        raise SettingsError(f"--ready-file: there is no directory {options.ready_file.parent}")
    data = DataDirectory(options.data)
    try:
        data.end_previous_life()
        port = _wait_for_port(options.host, options.port)
        server = None if env.get("BYRE_REDIS_URL") else redis_server.prepare(options.data / "redis")
        address = f"http://{_reachable(options.host)}:{port}"
        child_env = _environment(options, env, data, port, address, server.url if server else None)
        settings = Settings.from_env(child_env)
        output = Output(sys.stdout, settings.log_format)
        for line in unknown(env):
            output.say(line)
        return _Deployment(options, settings, child_env, data, server, output, address).run()
    finally:
        data.close()


class _Deployment:
    """One running `byre dev`: its children and what is known of them."""

    def __init__(
        self,
        options: Options,
        settings: Settings,
        env: Mapping[str, str],
        data: DataDirectory,
        server: redis_server.RedisServer | None,
        output: Output,
        address: str,
    ) -> None:
        self._options = options
        self._settings = settings
        self._data = data
        self._server = server
        self._output = output
        self._address = address
        self._tokens: dict[str, str] = {}
        self._welcomed = False
        self._probe = ApiProbe(_reachable(options.host), settings.port)
        python = [sys.executable, "-P", "-m"]  # -P: a directory named app where we are started isn't ours
        self._redis = [Child("redis", "redis", server.argv, env)] if server else []
        gunicorn = [*python, "gunicorn", "--config", "python:app.gunicorn_conf"]
        self._api = Child("api", "api", gunicorn, env, directory=processes.ROOT)  # gunicorn imports from where it stands
        worker = [*python, "app.cli", "worker"]
        names = ["worker"] if options.workers == 1 else [f"worker-{n + 1}" for n in range(options.workers)]
        self._workers = [Child(name, "worker", worker, env, announces=True) for name in names]
        self._children = [*self._redis, self._api, *self._workers]

    def run(self) -> int:
        supervisor = Supervisor(
            self._children, self._output, ready=self._serves, published=self._publish, died=self._look_after
        )  # fmt: skip
        self._forget_ready()
        try:
            supervisor.start()
            self._data.record_children(self._pids())
            self._tokens = _tokens(self._settings, self._data)
            supervisor.run()
        except StartFailed as error:
            if str(error):
                self._output.say(str(error))
            return error.status
        except SettingsError as error:
            self._output.say(str(error))
            return EXIT_STATUS
        finally:
            self._forget_ready()
            supervisor.stop()
            supervisor.close()
            self._probe.close()
            for path in self._server.cleanup if self._server else ():
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        return 0

    def _serves(self) -> bool:
        if self._server and not redis_accepts(self._server.url):
            return False  # the API may still say what it found a moment ago
        return self._probe.look()

    def _publish(self) -> None:
        self._data.record_children(self._pids())
        document: dict[str, Any] = {
            "url": self._address,
            "management_token": self._tokens["management"],
            "user_token": self._tokens["user"],
            "tenant": TENANT,
            "login": _login(),
            "redis_url": self._settings.redis_url,
            "object_store": self._settings.object_store,
            "api_pid": self._api.pid,
            "worker_pids": [worker.pid for worker in self._workers],
            "redis_pid": self._redis[0].pid if self._redis else None,
        }
        for path in self._ready_files():
            dev_data.write_ready(path, document)
        if self._welcomed:
            self._output.say("serving again")
        else:
            self._welcomed = True
            self._output.say(f"serving at {self._address}")
            self._output.plain(_welcome(self._address, self._options.data, self._settings))

    def _look_after(self, child: Child) -> None:
        """A Redis that ends by itself twice in a row refuses its files: it gets an empty directory instead."""
        if self._server and child.kind == "redis" and (child.last_exit or 0) > 0 and child.failures == 2:
            moved = redis_server.set_aside(self._server)
            if moved:
                self._output.say(
                    f"Redis refuses its files: they are put aside in {moved[0].parent}, nothing acknowledged is lost"
                )

    def _ready_files(self) -> set[Path]:
        """Where it was asked for, and where `byre tail` looks."""
        return {self._options.data / "ready.json", self._options.ready_file}

    def _forget_ready(self) -> None:
        for path in self._ready_files():
            path.unlink(missing_ok=True)

    def _pids(self) -> list[int]:
        return [child.pid for child in self._children if child.pid]


def _environment(
    options: Options, env: Mapping[str, str], data: DataDirectory, port: int, address: str, redis_url: str | None
) -> dict[str, str]:
    """What the children are told. What `env` has wins, but for the flags of `byre dev`."""
    flags = {"BYRE_HOST": options.host, "BYRE_PORT": str(port), "BYRE_DATA": str(options.data), "PYTHONUNBUFFERED": "1"}
    defaults = {
        "BYRE_OBJECT_STORE": "file://" + quote(str(options.data / "store")),
        "BYRE_PUBLIC_URL": address,
        "BYRE_REPO_ROOTS": str(Path.home()),
        "BYRE_VENDOR": "script",
        "BYRE_LOG_FORMAT": "console",
        "BYRE_DRAIN_SECONDS": DRAIN_SECONDS,
    }
    if redis_url:
        defaults["BYRE_REDIS_URL"] = redis_url
    given = {name: value for name, value in env.items() if value.strip() or not name.startswith("BYRE_")}
    merged = {**defaults, **given, **flags}
    if "BYRE_SECRET_KEY" not in merged:
        merged["BYRE_SECRET_KEY"] = data.secret_key()
    settings = Settings.from_env(merged)
    if "BYRE_HARNESSES" not in merged:
        merged["BYRE_HARNESSES"] = ",".join(dict.fromkeys(["script", *settings.harnesses]))
    return merged


def _tokens(settings: Settings, data: DataDirectory) -> dict[str, str]:
    """A management and a user token of tenant `dev`, made once for a data directory and its store. Raises SettingsError."""
    from app import logs, wiring  # takes a second, in which the children are starting

    logs.configure(settings.log_format, "warning", "byre")
    store = wiring.store_of(settings)
    try:
        tokens = wiring.tokens_of(settings, store)
        found: dict[str, str] = {}
        callers: tuple[tuple[Scope, str | None], ...] = (("management", None), ("user", _login()))
        for scope, login in callers:
            token = data.secret(f"{scope}.token")
            if token is None or not _valid(tokens, token):
                _, token = tokens.create(TENANT, scope, login=login, name="byre dev")
                data.keep_secret(f"{scope}.token", token)
            found[scope] = token
        return found
    except (ByreError, StoreError, OSError) as error:
        raise SettingsError(f"the tokens can't be made in {settings.object_store}: {error}") from error
    finally:
        store.close()


def _valid(tokens: Any, token: str) -> bool:
    try:
        tokens.authenticate(token)
    except ByreError:
        return False
    return True


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "dev"  # a user id without a name, as in some containers


def _wait_for_port(host: str, port: int) -> int:
    """The port, once it can be listened on. Raises SettingsError if it can't within `PORT_PATIENCE`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + PORT_PATIENCE
    while True:
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                probe.listen(1)  # bind alone succeeds beside a listener that set SO_REUSEADDR too
                return int(probe.getsockname()[1])
        except OSError as error:
            if time.monotonic() >= deadline:
                raise SettingsError(
                    f"port {port} of {host} can't be used ({error.strerror}): choose another with --port"
                ) from error
            time.sleep(0.1)


def _reachable(host: str) -> str:
    """An address of this machine under which a server that listens on `host` is reached, as it stands in a URL."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not listened on
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _welcome(address: str, data: Path, settings: Settings) -> str:
    vendor = settings.vendor
    if vendor == "script":
        vendor += " (it plays what a message says, and needs no model key; BYRE_VENDOR chooses another)"
    read_token = f"TOKEN=$(cat {shlex.quote(str(data / 'management.token'))})"
    return f"""
  Byre is at     {address}
  vendor         {vendor}
  state          {data}
  stop           Ctrl-C

  Try this in another terminal:

    {read_token}
    curl -s {address}/sessions -H "Authorization: Bearer $TOKEN" \\
      -H 'Content-Type: application/json' -d '{{"harness": "script", "config": {{"model": "script-1", "tools": []}}}}'

    SESSION=   # the id in that answer
    curl -s {address}/sessions/$SESSION/events -H "Authorization: Bearer $TOKEN" \\
      -H 'Content-Type: application/json' -d '{{"type": "user.message", "text": "/say hello"}}'

    curl -sN {address}/sessions/$SESSION/events -H "Authorization: Bearer $TOKEN" -H 'Accept: text/event-stream'
"""
