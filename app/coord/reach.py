"""Redis that can't be reached is one error, whichever call met it.

Rule: nothing is repeated here. After Unavailable the call may have taken effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from app.core.errors import Unavailable


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """Raises Unavailable for what Redis, or the way to it, fails with in the block."""
    try:
        yield
    except redis.RedisError as error:
        raise Unavailable("Redis can't be reached") from error
