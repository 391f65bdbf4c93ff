"""The Lua scripts, loaded from the `lua` folder and run by their hash.

Rules: a script is the only way in which this project changes Redis, so every change is atomic. A script that the server doesn't
know (NOSCRIPT: it has not run) is loaded and run again; nothing else is repeated here.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Any

import redis

from app.core.errors import Unavailable

_FOLDER = Path(__file__).parent / "lua"


class Scripts:
    """Runs scripts against one deployment's keys. `prefix` separates deployments that share a server."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client = client
        self.prefix = "{" + prefix + "}"
        prelude = (_FOLDER / "prelude.lua").read_text()
        self._source = {p.stem: f"{prelude}\n{p.read_text()}" for p in _FOLDER.glob("*.lua") if p.stem != "prelude"}
        self._sha = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in self._source.items()}  # noqa: S324

    def run(self, name: str, *args: Any) -> Any:
        """The script's reply, as bytes and lists. Raises Unavailable if Redis can't be reached or has no memory left.

        After Unavailable the script may or may not have run.
        """
        boot = secrets.token_hex(8)  # a new one each time: after a flush the same one would bring the old incarnation back
        try:
            try:
                return self.client.evalsha(self._sha[name], 1, self.prefix, boot, *args)
            except redis.exceptions.NoScriptError:
                return self.client.eval(self._source[name], 1, self.prefix, boot, *args)
        except redis.exceptions.OutOfMemoryError as e:
            raise Unavailable("Redis has no memory left") from e
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as e:
            raise Unavailable("Redis can't be reached") from e
        except redis.exceptions.ResponseError as e:
            if "OOM" in str(e):
                raise Unavailable("Redis has no memory left") from e
            raise
