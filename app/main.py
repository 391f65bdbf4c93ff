"""The API as a WSGI application, for a server to load: `app.main:create()`.

Rules: one call of `create` for each server process, after it was forked. A configuration that can't work ends the process with
one line and no traceback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from app.settings import EXIT_STATUS, SettingsError, load

if TYPE_CHECKING:
    from app.http.app import App
    from app.wiring import Api

_api: Api | None = None


def create() -> App:
    """The application with its clients connected and proven. Ends the process if the settings can't work."""
    global _api  # the server calls `create`, its exit hook `close`: nothing else connects the two
    try:
        from app import wiring

        settings = load()
        _api = wiring.api(wiring.connect(settings, "api"))
        return _api.app
    except SettingsError as error:
        print(f"byre: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_STATUS)


def close() -> None:
    """Lets go of what `create` opened."""
    if _api is not None:
        _api.close()
