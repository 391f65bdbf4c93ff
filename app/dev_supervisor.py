"""Keeps the children of `byre dev` running, shows what they say, and stops them in order.

Rules: one thread, which only waits in `select`; so a child can be started safely at any moment. The children are given in start
order and are stopped in the order API, workers, Redis, in ten seconds together.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType

from app.dev_child import Child
from app.dev_output import Output
from app.settings import EXIT_STATUS, SettingsError

STOP_ORDER = (("api", 3.4), ("worker", 8.4), ("redis", 9.7))
"""Kinds in the order of their stop, with the seconds after which each is killed, counted from the start of the whole stop."""
MOST_FAILURES = 5
"""Deaths in a row of a child, before everything has once been ready, after which the start is given up."""
POLL = 0.1
"""Seconds between two looks at whether everything is ready, while it isn't."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StartFailed(Exception):
    """A child can't start. The message is one line; empty if the child has said it itself. `status` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Supervisor:
    """`ready()` tells whether the children, all running, serve; `published()` is called each time they do with new pids.

    `died(child)` is called after each death, before the child is started again.
    """

    def __init__(
        self,
        children: Sequence[Child],
        output: Output,
        *,
        ready: Callable[[], bool],
        published: Callable[[], None],
        died: Callable[[Child], None],
    ) -> None:
        self._children = children
        self._output = output
        self._ready = ready
        self._published = published
        self._died = died
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._serving: tuple[int | None, ...] | None = None
        self._wake, self._woken = socket.socketpair()

    def start(self) -> None:
        """Takes over the signals and starts all children. Raises SettingsError if a program can't be run."""
        for end in (self._wake, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler of any kind makes the kernel's signal wake us
        for child in self._children:
            self._start(child)

    def run(self) -> None:
        """Returns when told to stop. Raises StartFailed if a child can't start before everything was ready once."""
        while not self._signals:
            now = time.monotonic()
            for child in self._children:
                if child.pid is None and child.start_at <= now:
                    self._start(child)
            if not self._look():
                self._wait(POLL)
            else:
                self._wait(None)
            self._collect(restart=True)

    def stop(self) -> None:
        """Stops all children in order; those that don't in time are killed. A second signal kills at once what isn't Redis."""
        seen = self._signals
        began = time.monotonic()
        for kind, seconds in STOP_ORDER:
            wanted = [child for child in self._children if child.kind == kind]
            for child in wanted:
                child.terminate()
            while any(child.pid for child in wanted):
                left = began + seconds - time.monotonic()
                if left <= 0 or (self._signals > max(seen, 1) and kind != "redis"):
                    for child in wanted:
                        child.kill()
                self._wait(max(min(left, 0.2), 0.02))
                self._collect(restart=False)

    def close(self) -> None:
        """Gives the signals back and frees everything. The children must have been stopped."""
        signal.set_wakeup_fd(-1)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for child in self._children:
            child.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals += 1

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:
            raise SettingsError(f"{child.name} can't be started: {error}") from error
        self._selector.register(child, selectors.EVENT_READ)

    def _look(self) -> bool:
        """Whether the present children serve; publishes them the first time they do."""
        pids = tuple(child.pid for child in self._children)
        if pids == self._serving:
            return True
        if all(child.settled for child in self._children) and self._ready():
            self._serving = pids
            self._published()
            return True
        return False

    def _wait(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if isinstance(key.fileobj, Child):
                self._show(key.fileobj)
            else:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)

    def _show(self, child: Child) -> None:
        for line in child.lines():
            self._output.line(child.name, line)
        if child.silent:
            self._selector.unregister(child)

    def _collect(self, *, restart: bool) -> None:
        for child in self._children:
            if not child.dead():
                continue
            with contextlib.suppress(KeyError):
                self._selector.unregister(child)
            for line in child.collect():
                self._output.line(child.name, line)
            if restart:
                self._judge(child)

    def _judge(self, child: Child) -> None:
        if self._serving is None and child.last_exit == EXIT_STATUS:
            raise StartFailed("", EXIT_STATUS)
        self._output.say(f"{child.name} ended ({_how(child.last_exit)}), starting it again")
        self._died(child)
        if self._serving is None and child.failures >= MOST_FAILURES:
            raise StartFailed(f"{child.name} ended {child.failures} times at its start: see its lines above", 1)


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
