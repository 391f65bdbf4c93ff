"""Names to addresses, once and in bounded time.

Rules: the system's resolver can't be told to hurry, so it runs in a thread of its own that is left to itself when it is too slow; there
are at most `AT_ONCE` of those.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from app.outgoing.errors import NotSent
from app.outgoing.wire import Address, Deadline

AT_ONCE = 32
Found = list[tuple[int, Address]]
_slots = threading.BoundedSemaphore(AT_ONCE)


def resolve(host: str, port: int, deadline: Deadline, ask: Callable[..., Any] = socket.getaddrinfo) -> Found:
    """Every address of `host`, as (family, socket address), in the resolver's order. Raises NotSent."""
    if not _slots.acquire(timeout=deadline.left()):
        raise NotSent("too many names are being looked up")
    answer: queue.SimpleQueue[Found | OSError | UnicodeError] = queue.SimpleQueue()

    def look() -> None:
        try:
            rows = ask(host, port, 0, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            answer.put([(row[0], row[4]) for row in rows if row[0] in (socket.AF_INET, socket.AF_INET6)])
        except (OSError, UnicodeError) as error:
            answer.put(error)
        finally:
            _slots.release()

    threading.Thread(target=look, name="resolve", daemon=True).start()
    try:
        found = answer.get(timeout=max(deadline.left(), 0.001))
    except queue.Empty:
        raise NotSent("its name isn't resolved in time") from None
    if not isinstance(found, list) or not found:
        raise NotSent("its name can't be resolved")
    return found
