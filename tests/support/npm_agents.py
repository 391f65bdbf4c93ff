"""Real agent programs from npm, as pinned in tests/agents/npm: installed once for this user, outside of the repository.

`python -m tests.support.npm_agents` installs them all, for machines whose tests shall not wait for it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PINS = Path(__file__).resolve().parents[1] / "agents" / "npm"
SECONDS = 600
OLDEST_NODE = 20
"""With which the ACP agent is known to work. What is older (Debian 12 has 18) gets a Node.js from npm. The CLI needs none."""
PROGRAMS = {"claude": "claude", "acp": "claude-agent-acp", "node": "node"}
FLAGS = {"acp": ["--omit=optional"]}  # it would bring a second copy of the CLI, of 400 MB


class NotHere(Exception):
    """What this machine lacks."""


class NotInstalled(Exception):
    """Why an agent can't be installed."""


@functools.cache
def command(name: str) -> str:
    """The command line of agent `name` ("claude" or "acp"). Raises NotHere, NotInstalled."""
    program = _program(name)
    if name == "acp" and _version() < OLDEST_NODE:
        return f"{_program('node')} {program}"
    return str(program)


def required(name: str) -> str:
    """Like `command`, but skips the test that needs it."""
    try:
        return command(name)
    except (NotHere, NotInstalled) as error:
        pytest.skip(f"no {PROGRAMS[name]}: {error}")


def _version() -> int:
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60)
    return int(done.stdout.strip().removeprefix("v").partition(".")[0] or 0)


def _program(name: str) -> Path:
    if not shutil.which("npm") or not shutil.which("node"):
        raise NotHere("npm is missing: install Node.js with npm")
    pins = PINS / name
    mark = hashlib.sha256((pins / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "byre-test-agents"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"{name}-{mark}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run in parallel
        if not place.is_dir():
            _install(pins, place, FLAGS.get(name, []))
    return place / "node_modules" / ".bin" / PROGRAMS[name]


def _install(pins: Path, place: Path, flags: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        for file in ("package.json", "package-lock.json"):
            shutil.copy(pins / file, scratch)
        try:
            done = subprocess.run(
                ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", *flags],
                cwd=scratch, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotInstalled(f"npm ci took over {SECONDS} s") from None
        if done.returncode:
            raise NotInstalled(f"npm ci failed: {done.stderr[-500:]}")
        Path(scratch).rename(place)
        Path(scratch).mkdir()  # for the clean-up of the temporary directory


if __name__ == "__main__":
    for wanted in ("claude", "acp"):
        try:
            print(command(wanted))
        except (NotHere, NotInstalled) as problem:
            print(f"{wanted}: {problem}")
