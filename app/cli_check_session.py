"""`byre check --session`: everything of one session is read again and held against its checksums."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from app import wiring
from app.cli_gc import Progress
from app.core.errors import ByreError, Missing
from app.log import heads
from app.services.checking import SessionCheck
from app.settings import Settings
from app.store import keys
from app.store.cipher import Cipher
from app.store.contract import Store, StoreError
from app.store.keys import LogName
from app.store.trash import Trash


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Prints what was found; 0 if everything is whole, 1 if something isn't, or there is no such session."""
    settings.require("secret_key")
    store = wiring.store_of(settings)
    progress = Progress()
    try:
        return _check(settings, store, arguments, progress)
    except (ByreError, StoreError, ValueError) as error:
        progress.end()
        print(f"byre: {error}", file=sys.stderr)
        return 1
    finally:
        store.close()


def find_session(store: Store, tenant: str | None, session: str) -> LogName:
    """The session, in `tenant` or wherever it is. Raises Missing, ValueError, Unavailable."""
    trash = Trash(store)
    for each in [tenant] if tenant else trash.folders(keys.tenants_prefix()):
        if trash.get(keys.session_json(each, session)) is not None:
            return LogName(each, session)
    raise Missing(f"there is no session {session}" + (f" of tenant {tenant}" if tenant else ""))


def _check(settings: Settings, store: Store, arguments: argparse.Namespace, progress: Progress) -> int:
    from workers import checkpoint

    name = find_session(store, arguments.tenant, arguments.session)
    cipher = Cipher(settings.secret_key, purpose="native")
    check = SessionCheck(
        store,
        name,
        partial(checkpoint.read, store),
        partial(checkpoint.chunk, store, cipher=cipher),
        progress.say,
    )
    found = check.run()
    progress.end()
    print(f"session {name.session} of tenant {name.tenant}")
    for line in found.good:
        print(f"read         {line}")
    for line in found.notes:
        print(f"note         {line}")
    for key, why in found.bad:
        print(f"wrong        {key}: {why}")
    if found.bad:
        print(f"NOT WHOLE: {len({key for key, _ in found.bad})} objects are not what was written")
        return 1
    print("everything is whole")
    if arguments.thaw:
        heads.thaw(store, name)
        print("the session is not frozen (any more)")
    return 0
