"""`byre token`: makes, lists and revokes stored tokens. It needs the object store and the secret key, not a running server."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime

from app import wiring
from app.core.errors import ByreError
from app.services.tokens import Record, Tokens
from app.settings import Settings
from app.store.contract import StoreError

DAY = 86_400


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Does what `arguments` (see `app/cli.py`) ask for; returns the exit status."""
    store = wiring.store_of(settings)
    try:
        tokens = wiring.tokens_of(settings, store)
        {"create": _create, "list": _list, "revoke": _revoke}[arguments.action](tokens, arguments)
    except (ByreError, StoreError, ValueError) as error:
        print(f"byre: {error}", file=sys.stderr)
        return 1
    finally:
        store.close()
    return 0


def _create(tokens: Tokens, arguments: argparse.Namespace) -> None:
    expires_at = int(time.time()) + arguments.days * DAY if arguments.days else None
    token_id, plaintext = tokens.create(arguments.tenant, arguments.scope, arguments.login, expires_at, arguments.name)
    print(f"id {token_id}; the token below is shown this once", file=sys.stderr)
    print(plaintext)


def _list(tokens: Tokens, arguments: argparse.Namespace) -> None:
    row = "{:<16}  {:<10}  {:<20}  {:<20}  {:<10}  {}".format
    print(row("ID", "SCOPE", "LOGIN", "NAME", "CREATED", "STATE"))
    for record in tokens.list(arguments.tenant):
        created = _date(record.created_at)
        print(row(record.token_id, record.scope, record.login or "-", record.name or "-", created, _state(record)))


def _revoke(tokens: Tokens, arguments: argparse.Namespace) -> None:
    tokens.revoke(arguments.id, arguments.tenant)
    print(f"{arguments.id} is revoked", file=sys.stderr)


def _state(record: Record) -> str:
    if record.revoked_at:
        return f"revoked {_date(record.revoked_at)}"
    if record.expires_at:
        return f"{'ended' if record.expires_at <= time.time() else 'until'} {_date(record.expires_at)}"
    return "valid"


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
