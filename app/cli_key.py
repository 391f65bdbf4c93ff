"""`byre key`: sets, lists and deletes keys of model vendors. It needs the object store and the secret key, not a running server.

Rules: a key comes from standard input, never from the command line, where others on the machine would see it; it is never shown.
"""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from datetime import UTC, datetime

from app import wiring
from app.core.errors import ByreError
from app.services.model_keys import LONGEST, ModelKeys
from app.settings import Settings
from app.store.contract import StoreError


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Does what `arguments` (see `app/cli.py`) ask for; returns the exit status."""
    store = wiring.store_of(settings)
    try:
        keys = wiring.model_keys_of(settings, store)
        {"set": _set, "list": _list, "delete": _delete}[arguments.action](keys, arguments)
    except (ByreError, StoreError, ValueError) as error:
        print(f"byre: {error}", file=sys.stderr)
        return 1
    finally:
        store.close()
    return 0


def _set(keys: ModelKeys, arguments: argparse.Namespace) -> None:
    value = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.read(LONGEST + 2)
    shown = keys.put(arguments.tenant, arguments.vendor, value.strip(), arguments.variable, int(time.time()))
    print(
        f"{shown.variable} of {shown.vendor} is set for {arguments.tenant}; agents started from now on get it", file=sys.stderr
    )


def _list(keys: ModelKeys, arguments: argparse.Namespace) -> None:
    row = "{:<20}  {:<30}  {}".format
    print(row("VENDOR", "VARIABLE", "SET"))
    for shown in keys.list(arguments.tenant):
        print(row(shown.vendor, shown.variable, datetime.fromtimestamp(shown.created_at, UTC).strftime("%Y-%m-%d")))


def _delete(keys: ModelKeys, arguments: argparse.Namespace) -> None:
    keys.delete(arguments.tenant, arguments.vendor, arguments.variable)
    print(f"the key of {arguments.vendor} is deleted", file=sys.stderr)
