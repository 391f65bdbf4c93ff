"""How gunicorn serves the API: `byre api`, or `gunicorn --config python:app.gunicorn_conf`.

Every value that isn't gunicorn's default says why. What differs between deployments is in `app/settings.py`; the rest is not
meant to be changed.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from gunicorn import glogging

from app import logs, processes
from app.settings import SettingsError, load

try:
    _settings = load()
except SettingsError as _error:
    sys.exit(f"byre: {_error}")


class Logger(glogging.Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's own lines go through our logs, so that all lines of a process look alike."""

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn at start and at each reload."""
        self.cfg = cfg
        self._access_log_enabled = False
        logs.configure(_settings.log_format, _settings.log_level, "api")
        self.error_log.propagate = True
        self.error_log.setLevel(logging.NOTSET)


def post_fork(_: Any, worker: Any) -> None:
    """First thing in a server process: it dies with its master, and all that is imported from here on is cooperative."""
    processes.die_with_parent(worker.ppid)
    from gevent import monkey

    monkey.patch_all()


def worker_exit(_: Any, __: Any) -> None:
    """Last thing in a server process."""
    main = sys.modules.get("app.main")
    if main is not None:
        main.close()
    ending = sys.exc_info()[1]
    if isinstance(ending, SystemExit) and not ending.code:
        processes.leave(0)


def on_exit(_: Any) -> None:
    """Last thing in the master."""
    if isinstance(sys.exc_info()[1], StopIteration):  # a stop that was asked for; else it says why by its exit status
        processes.leave(0)


processes.raise_open_files()  # each stream is an open file

wsgi_app = "app.main:create()"
bind = f"[{_settings.host}]:{_settings.port}" if ":" in _settings.host else f"{_settings.host}:{_settings.port}"
proc_name = "byre-api"
logger_class = Logger
accesslog = None  # requests are counted in /metrics, and the application logs what matters
control_socket_disable = True  # a second way in that nobody here uses

# One greenlet for each connection. Streams have their own cap below the pool's size, so that they can't keep requests out.
worker_class = "app.gunicorn_worker.Worker"
workers = _settings.api_processes
worker_connections = _settings.max_streams + 2000

# Signs of life come once a second whatever the requests do: a process without one this long is blocked for good.
timeout = 30
# A stop takes under 3 s, live streams or not (`gunicorn_worker.GRACE`); this is when the master stops waiting for it.
graceful_timeout = 3
# Longer than the idle time of common load balancers (60 s), else they send requests on connections that we just closed.
keepalive = 75

# Ids and cursors are short. What is longer is not for us.
limit_request_line = 8190
limit_request_fields = 64
limit_request_field_size = 8190
# No proxy is believed: the public address is a setting, and nothing depends on the caller's address.
forwarded_allow_ips = ""
secure_scheme_headers: dict[str, str] = {}
header_map = "drop"  # a header with an underscore could pass for one with a dash
