"""The hub: the one reader of a process that follows live logs, for any number of followers.

Rules: one subscription connection per process; a frame is parsed and encoded once, whoever follows; a follower's queue is bounded,
and one that lags is sent back to reading history, never fed from memory. Pub/sub may lose the last message, so after each reconnect
and each heartbeat the heads are compared. Dense offsets are the truth: what isn't the next one is history to be read.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from app.core.cursor import Position
from app.core.errors import Unavailable
from app.log import events
from app.log.follower import Follower
from app.log.log import Log
from app.log.pace import Pace
from app.log.subscription import Subscription
from app.store.keys import LogName

HEARTBEAT_SECONDS = 10.0
HEADS_AT_ONCE = 200
"""Logs whose heads are asked for in one command: Redis serves nobody else meanwhile."""
_INPUT = re.compile(rb'(?:\A|\n)\{"type":"(?:user|session|input)\.')
"""Lines that a worker must look at. A quote inside JSON text is escaped, so this never matches in the middle of one."""

logger = structlog.get_logger(__name__)


class Chunk:
    """Events `first ..` of one generation as they were published, or (with `gen` -1) deltas. Encoded for SSE once, when first needed."""

    def __init__(self, log: LogName, gen: int, first: int, lines: list[bytes]) -> None:
        self.log, self.gen, self.first, self.lines = log, gen, first, lines
        self.size = sum(map(len, lines)) + 64 * len(lines)

    @property
    def end(self) -> int:
        """The offset after the last event."""
        return self.first + len(self.lines)

    @functools.cached_property
    def sse(self) -> bytes:
        """All of it as server-sent events."""
        if self.gen < 0:
            return b"".join(map(events.delta_frame, self.lines))
        name = self.log.session or self.log.tenant
        return b"".join(events.frame(name, Position(self.gen, o), raw) for o, raw in enumerate(self.lines, self.first))

    def with_lines(self, more: list[bytes]) -> Chunk:
        """This chunk and what follows it."""
        return Chunk(self.log, self.gen, self.first, [*self.lines, *more])

    def since(self, offset: int) -> Chunk:
        """The part from `offset` on."""
        return self if offset == self.first else Chunk(self.log, self.gen, offset, self.lines[offset - self.first :])


class Feed:
    """What the hub knows of one followed log: the last offset it saw published, and who follows."""

    def __init__(self) -> None:
        self.last = Position(-1, -1)
        self.followers: list[Follower] = []
        self.watchers: list[Callable[[], None]] = []


class Hub:
    """Follows logs by their channels. `channel` gives a log's channel name; `connect` makes subscription connections."""

    def __init__(self, log: Log, channel: Callable[[str], str], subscription: Subscription) -> None:
        self.log = log
        self._channel = channel
        self._subscription = subscription
        self._feeds: dict[str, tuple[LogName, Feed]] = {}
        self._pace = Pace()
        self._extra: dict[str, Callable[[bytes], None]] = {}
        self._heard: dict[str, list[Callable[[bytes], None]]] = {}
        self._lock = threading.Lock()
        self._beat = 0.0
        subscription.start(self._on_message, self._on_beat, self._on_connected)

    def follow(self, log: LogName, after: Position, notify: Callable[[], None] | None = None) -> Follower:
        """A follower of `log` that has seen everything up to `after`. `notify` is called (from the hub's thread) when it has news."""
        follower = Follower(self, log, after, notify)
        channel = self._channel(log.text)
        with self._lock:
            feed = self._feeds.setdefault(channel, (log, Feed()))[1]
            feed.followers.append(follower)
            follower.feed = feed
            confirmed = self._subscription.subscribe(channel)
        self._subscription.confirmed(confirmed)
        return follower

    def watch(self, log: LogName, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls `heard` (from the hub's thread) when a client's input or a revocation comes, and whenever one may have been missed.

        Gives the function that ends it.
        """
        channel = self._channel(log.text)
        with self._lock:
            self._feeds.setdefault(channel, (log, Feed()))[1].watchers.append(heard)
            confirmed = self._subscription.subscribe(channel)
        self._subscription.confirmed(confirmed)

        def end() -> None:
            with self._lock:
                held = self._feeds.get(channel)
                if held and heard in held[1].watchers:
                    held[1].watchers.remove(heard)
                self._drop(channel)

        return end

    def listen(self, channel: str, heard: Callable[[bytes], None]) -> None:
        """Calls `heard` with each message of a plain channel. One listener per channel; for the life of the hub."""
        self._extra[channel] = heard
        self._subscription.confirmed(self._subscription.subscribe(channel))

    def hear(self, channel: str, heard: Callable[[bytes], None]) -> Callable[[], None]:
        """Like `listen`, for any number of listeners, until the function that it gives is called."""
        with self._lock:
            self._heard.setdefault(channel, []).append(heard)
            confirmed = self._subscription.subscribe(channel)
        self._subscription.confirmed(confirmed)

        def end() -> None:
            with self._lock:
                left = self._heard.get(channel, [])
                if heard in left:
                    left.remove(heard)
                if channel in self._heard and not left:
                    del self._heard[channel]
                    self._subscription.unsubscribe(channel)

        return end

    def unfollow(self, follower: Follower) -> None:
        """Ends a follower; the last one of a log ends its subscription."""
        channel = self._channel(follower.log.text)
        with self._lock:
            held = self._feeds.get(channel)
            if not held or follower not in held[1].followers:
                return
            held[1].followers.remove(follower)
            self._drop(channel)

    def _drop(self, channel: str) -> None:
        """Ends a subscription that nobody needs; under the lock, so that one who comes just now subscribes after it."""
        held = self._feeds.get(channel)
        if held is not None and not held[1].followers and not held[1].watchers:
            del self._feeds[channel]
            self._subscription.unsubscribe(channel)

    def followers(self) -> int:
        """How many followers there are."""
        with self._lock:
            return sum(len(feed.followers) for _, feed in self._feeds.values())

    def connected(self) -> bool:
        """Whether the subscription connection is up."""
        return self._subscription.connected

    def close(self) -> None:
        """Ends the connection and wakes every follower, whose reads then end."""
        self._subscription.close()
        self._pace.close()
        for follower in self._all():
            follower.end()

    def _all(self) -> list[Follower]:
        with self._lock:
            return [f for _, feed in self._feeds.values() for f in feed.followers]

    def _on_message(self, channel: str, message: bytes) -> None:
        heard = self._extra.get(channel)
        if heard:
            heard(message)
            return
        for each in tuple(self._heard.get(channel, ())):
            each(message)
        held = self._feeds.get(channel)
        if not held:
            return
        log, feed = held
        head, _, rest = message.partition(b"\n")
        words = head.split(b" ")
        if words[0] == b"E":
            chunk = Chunk(log, int(words[1]), int(words[2]), rest.split(b"\n"))
            feed.last = max(feed.last, Position(chunk.gen, chunk.end - 1))
        elif words[0] == b"D":
            chunk = Chunk(log, -1, 0, rest.split(b"\n"))
        else:
            self._poke(feed.followers)
            self._tell(feed)
            return
        if feed.watchers and _INPUT.search(rest):
            self._tell(feed)
        self._pace.push(feed, chunk)

    def _on_connected(self) -> None:
        self._compare_heads()
        self._poke(self._all())
        with self._lock:
            feeds = [feed for _, feed in self._feeds.values()]
            others = [each for several in self._heard.values() for each in several]
        for feed in feeds:
            self._tell(feed)
        for each in others:
            each(b"")

    def _on_beat(self) -> None:
        if time.monotonic() - self._beat > HEARTBEAT_SECONDS:
            self._compare_heads()

    def _compare_heads(self) -> None:
        self._beat = time.monotonic()
        with self._lock:
            feeds = list(self._feeds.values())
        for i in range(0, len(feeds), HEADS_AT_ONCE):
            some = feeds[i : i + HEADS_AT_ONCE]
            try:
                ends = self.log.coord.heads([log.text for log, _ in some])
            except Unavailable:
                return
            for (_, feed), end in zip(some, ends, strict=True):
                if end and Position(end[0], end[1] - 1) > feed.last:
                    feed.last = Position(end[0], end[1] - 1)
                    for follower in tuple(feed.followers):
                        follower.stale(feed.last)

    @staticmethod
    def _tell(feed: Feed) -> None:
        for heard in tuple(feed.watchers):
            heard()

    @staticmethod
    def _poke(followers: Iterable[Follower]) -> None:
        for follower in tuple(followers):
            follower.poke()


def open_hub(log: Log, coord: Any, connect: Callable[[], Any]) -> Hub:
    """A hub on `coord`'s channels; `connect` makes a new redis-py `Connection`."""
    return Hub(log, coord.channel, Subscription(connect))
