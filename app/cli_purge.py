"""`byre purge`: erases a session for good, in the store and in Redis."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from app import wiring
from app.cli_check_session import find_session
from app.core.errors import ByreError
from app.services.erasing import Eraser
from app.settings import Settings
from app.store.contract import StoreError


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Erases the session with `--yes`, else says what would go; returns the exit status: 1 if something of it has to stay."""
    from workers import checkpoint

    base = wiring.connect(settings, "purge")
    try:
        name = find_session(base.store, arguments.tenant, arguments.session)
        eraser = Eraser(base.store, wiring.coord_of(base), partial(checkpoint.read, base.store))
        gone = eraser.erase(name, really=arguments.yes)
    except (ByreError, StoreError, ValueError) as error:
        print(f"byre: {error}", file=sys.stderr)
        return 1
    finally:
        base.close()
    print(f"session {name.session} of tenant {name.tenant}")
    print(
        f"{'erased' if arguments.yes else 'would erase'}: {gone.objects:,} objects, {gone.chunks:,} chunks of native state, ",
        end="",
    )
    print(f"{gone.trashed:,} copies in the trash")
    if gone.kept:
        print(f"note: its native state stays: {gone.kept}")
    if not arguments.yes:
        print("nothing was changed; --yes does it, and it can't be undone")
    return 1 if gone.kept else 0
