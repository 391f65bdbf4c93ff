"""`byre check`: the effective settings, and whether what they point to works.

Rules: it shows what is wrong with all of it, not only the first; secrets are masked; it changes nothing but a probe object in the
store, which it removes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from app import wiring
from app.settings import Settings, SettingsError, unknown

GIT_NEEDED = (2, 38)
"""The first with `git merge-tree --write-tree` (release notes of git 2.38)."""


def run(env: Mapping[str, str]) -> int:
    """Prints the settings of `env` and the outcome of each check; 0 if all are good, else 1."""
    settings = Settings.from_env(env)
    for entry in settings.entries():
        print(f"{entry.name:<28} {entry.shown or '-':<48} {'set' if entry.given else 'default'}")
    print()
    good = True
    for line in unknown(env):
        print(f"warning      {line}")
    for what, check in _checks(settings).items():
        try:
            print(f"ok           {what}: {check()}")
        except SettingsError as error:
            print(f"wrong        {what}: {error}")
            good = False
    return 0 if good else 1


def _checks(settings: Settings) -> dict[str, Callable[[], str]]:
    return {
        "secret key": lambda: _secret(settings),
        "object store": lambda: _store(settings),
        "redis": lambda: _redis(settings),
        "workspaces": lambda: _writable(settings.workspaces),
        "repositories": lambda: _roots(settings),
        "git": _git,
        "catalog": lambda: _catalog(settings),
        "harnesses": lambda: _harnesses(settings),
    }


def _secret(settings: Settings) -> str:
    settings.require("secret_key")
    return "set"


def _store(settings: Settings) -> str:
    store = wiring.store_of(settings)
    try:
        wiring.check_store(settings, store)
    finally:
        store.close()
    return "enforces conditional writes"


def _redis(settings: Settings) -> str:
    client = wiring.redis_of(settings, "check")
    try:
        return f"version {wiring.check_redis(settings, client)}, evicts nothing"
    finally:
        client.close()


def _writable(path: Path) -> str:
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise SettingsError(f"BYRE_WORKSPACES {path} can't be written: give the worker's user a directory of its own")
    return f"{path} can be written, {shutil.disk_usage(place).free // 2**30} GiB free"


def _roots(settings: Settings) -> str:
    for root in settings.repo_roots:
        if not root.is_dir():
            raise SettingsError(f"BYRE_REPO_ROOTS names {root}, which is not a directory")
    return ", ".join(map(str, settings.repo_roots)) or "git URLs only"


def _git() -> str:
    try:
        text = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SettingsError(f"git does not run ({error}): install it") from error
    version = tuple(int(part) for part in text.split()[2].split(".")[:2])
    if version < GIT_NEEDED:
        raise SettingsError(f"{text.strip()} is too old: {'.'.join(map(str, GIT_NEEDED))} is needed")
    return text.strip().removeprefix("git ")


def _catalog(settings: Settings) -> str:
    catalog = wiring.catalog_of(settings, wiring.outgoing_of(settings))
    return ", ".join(catalog.names()) or "no providers"


def _harnesses(settings: Settings) -> str:
    commands = {"claude": settings.claude_command, **settings.acp_agents}
    for name in settings.harnesses:
        command = commands.get(name)
        if command and not shutil.which(command[0]):
            raise SettingsError(f"the command of {name}, {command[0]}, is not on PATH: install it, or leave {name} out")
        if not command and name != "script":
            raise SettingsError(f"{name} is no harness: BYRE_ACP_AGENTS has no command for it")
    return ", ".join(settings.harnesses)
