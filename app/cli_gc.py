"""`byre gc`: what no session needs any more goes, or is only counted. It needs the object store, not a running server."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from app import wiring
from app.core.errors import ByreError
from app.services.garbage import Garbage, undo
from app.services.garbage_tally import Tally
from app.services.retention import Keep
from app.settings import Settings
from app.store.contract import Store, StoreError

DAY = 86_400
EVERY = {True: 0.2, False: 10.0}
"""Seconds between lines of progress, on a terminal and elsewhere."""


class Progress:
    """One line on standard error that says where a run is: written over on a terminal, now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + EVERY[self._terminal]
        self._shown = False

    def say(self, text: str) -> None:
        """Shows `text` if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY[self._terminal]
        self._shown = self._terminal
        print(f"\r\x1b[K{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clears the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Does what `arguments` (see `app/cli.py`) ask for; returns the exit status."""
    store = wiring.store_of(settings)
    progress = Progress()
    try:
        if arguments.undo is not None:
            return _undo(store, arguments.undo or None)
        return _collect(settings, store, arguments, progress)
    except (ByreError, StoreError, ValueError) as error:
        progress.end()
        print(f"byre: {error}", file=sys.stderr)
        return 1
    finally:
        store.close()


def _collect(settings: Settings, store: Store, arguments: argparse.Namespace, progress: Progress) -> int:
    from workers import checkpoint

    garbage = Garbage(
        store,
        partial(checkpoint.read, store),
        keep=Keep.parse(settings.keep_checkpoints),
        window=settings.trash_days * DAY,
        now=time.time,
        apply=arguments.apply,
        progress=progress.say,
    )
    tally = garbage.run([arguments.tenant] if arguments.tenant else None)
    progress.end()
    _report(tally, applied=arguments.apply)
    if arguments.apply and tally.total()[0]:
        print(f"run {garbage.run_id}: `byre gc --undo {garbage.run_id}` brings back what went into the trash,")
        print(f"for at least {settings.trash_days} days")
    elif not arguments.apply:
        print("nothing was changed; `byre gc --apply` does it")
    return 0


def _report(tally: Tally, *, applied: bool) -> None:
    for tenant, kinds in sorted(tally.found.items()):
        print(f"tenant {tenant}")
        for kind, (objects, size) in sorted(kinds.items()):
            print(f"  {kind:<44} {objects:>10,} objects  {shown(size):>10}")
    for note in tally.notes:
        print(f"note: {note}")
    compacted, back = ("compacted", "put back") if applied else ("to compact", "to put back")
    if tally.compacted:
        print(f"logs {compacted}, whose small segments can go in a day: {tally.compacted:,}")
    if tally.put_back:
        print(f"objects {back} from the trash, because they are in use again: {tally.put_back:,}")
    objects, size = tally.total()
    print(f"{'moved to the trash, or deleted from it' if applied else 'would free'}: {shown(size)} in {objects:,} objects")


def _undo(store: Store, run: str | None) -> int:
    found, count = undo(store, run)
    if found is None:
        print("byre: the trash is empty", file=sys.stderr)
        return 1
    if not count:
        print(f"byre: the trash has nothing of run {found[:80]}: `byre gc --apply` says a run's id", file=sys.stderr)
        return 1
    print(f"{count:,} objects of run {found} are back where they were")
    return 0


def shown(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
