"""Logs: one line per event on standard error, as JSON or for people.

Rules: `configure` is called once by an entry point, before anything logs. Lines of libraries that use `logging` (gunicorn,
boto3) come out in the same form. What looks like a secret is masked whoever logged it; that is the second line of defence,
the first is not to log it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

MASK = "***"
_SECRET_KEYS = frozenset(
    {
        "authorization",
        "cookie",
        "credential",
        "credentials",
        "password",
        "secret",
        "secret_key",
        "token",
        "private_key",
        "plaintext",
    }
)
_SECRET_TEXT = re.compile(
    r"\b(byre_[A-Za-z0-9_-]{20,}|byre[xi]\.[A-Za-z0-9_.-]{20,})"  # our tokens
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # user:password of an address
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}"
)
_QUIET = ("botocore", "boto3", "urllib3", "s3transfer", "asyncio")


def configure(form: str, level: str, who: str, *, stream: TextIO | None = None) -> None:
    """Sends all logs of this process to `stream` (standard error).

    `form` is "json" or "console", `level` a lower-case name, `who` names this process in JSON lines ("api", "worker").
    """
    out = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        last += [_named(who), structlog.processors.format_exc_info, mask, structlog.processors.JSONRenderer(default=str)]
    else:
        plain = structlog.dev.ConsoleRenderer(
            colors=False, pad_event_to=0, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
        last += [structlog.processors.format_exc_info, mask, plain]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def mask(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor that replaces values of secret keys and everything in text that looks like a secret by `***`."""
    for key, value in event.items():
        event[key] = MASK if key.lower() in _SECRET_KEYS and value else _masked(value)
    return event


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return _SECRET_TEXT.sub(MASK, value)
    if isinstance(value, dict):
        return {key: MASK if str(key).lower() in _SECRET_KEYS and part else _masked(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(part) for part in value]
    return value


def _named(who: str) -> structlog.typing.Processor:
    def add(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["process"] = who
        return event

    return add
