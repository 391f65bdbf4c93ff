"""`byre api` and `byre worker`: the two kinds of process of a deployment."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn

from app import logs, notify, processes, settings


def api() -> int:
    """Becomes the gunicorn master of the API (see `app/gunicorn_conf.py`). Doesn't return."""
    given = settings.load()
    given.require("object_store", "redis_url", "secret_key")
    _warn_of_unknown()
    os.chdir(processes.ROOT)  # gunicorn imports from where it stands, and a directory named app elsewhere isn't ours
    os.execv(sys.executable, [sys.executable, "-P", "-m", "gunicorn", "--config", "python:app.gunicorn_conf"])  # noqa: S606


def worker() -> NoReturn:
    """Runs a worker until SIGTERM, and ends with its exit status when it has drained."""
    given = settings.load()
    given.require("object_store", "redis_url", "secret_key")
    logs.configure(given.log_format, given.log_level, "worker")
    _warn_of_unknown()
    processes.raise_open_files()
    from workers.main import run

    processes.leave(run(given, ready=partial(notify.ready, given.notify_socket)))


def _warn_of_unknown() -> None:
    for line in settings.unknown(settings.environment()):
        print(f"byre: {line}", file=sys.stderr)
