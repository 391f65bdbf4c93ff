"""Logs: the two forms, lines of libraries, and that secrets never come out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from app import logs

TOKEN = "byre_" + "aZ9_" * 10 + "abc"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def written(form: str, level: str = "info") -> io.StringIO:
    out = io.StringIO()
    logs.configure(form, level, "api", stream=out)
    return out


def test_json_lines_carry_event_fields_process_and_time() -> None:
    out = written("json")
    structlog.get_logger("app.x").info("session made", session="abc", size=3)
    logging.getLogger("gunicorn.error").warning("worker %s left", 7)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["session"], first["size"], first["process"], first["level"]) == (
        "session made",
        "abc",
        3,
        "api",
        "info",
    )
    assert first["time"].endswith("Z")
    assert (second["event"], second["level"], second["logger"]) == ("worker 7 left", "warning", "gunicorn.error")


def test_console_lines_are_one_line_for_people() -> None:
    out = written("console")
    structlog.get_logger("app.x").info("session made", session="abc")
    (line,) = out.getvalue().splitlines()
    assert "session made" in line
    assert "session=abc" in line
    assert "\x1b" not in line


def test_below_the_level_nothing_is_written() -> None:
    out = written("json", "warning")
    structlog.get_logger("app.x").info("quiet")
    logging.getLogger("botocore").info("quiet")
    assert out.getvalue() == ""


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_masked_wherever_they_stand(form: str) -> None:
    out = written(form)
    log = structlog.get_logger("app.x")
    log.info("called", authorization="Basic abcdefgh", nested={"token": "abcdefgh", "list": [TOKEN]})
    log.info(f"got {TOKEN} from redis://user:hunter2hunter2@cache:1/0")
    logging.getLogger("lib").error("header Authorization: Bearer %s", "abcdefgh.ijkl")
    try:
        raise RuntimeError(TOKEN)
    except RuntimeError:
        log.exception("failed")
    text = out.getvalue()
    assert "failed" in text
    for secret in (TOKEN, "abcdefgh", "hunter2"):
        assert secret not in text
    assert "cache:1/0" in text
