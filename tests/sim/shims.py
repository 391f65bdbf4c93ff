"""What stands in for `time`, `threading`, `random` and thread pools in the code under test, on the scheduler's virtual time.

Rules: a module is given these by replacing the names in its namespace, for the time of one run; nothing in it knows. Locks are no
locks: a task is only ever interrupted where it waits. Each thing belongs to the process of the task that makes it.
"""

from __future__ import annotations

import time as real_time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.sim.scheduler import Scheduler, Task

EPOCH = 1_700_000_000.0
"""Unix time at the beginning of each run."""


class Time:
    """The module `time`."""

    gmtime, strftime = staticmethod(real_time.gmtime), staticmethod(real_time.strftime)

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.sleep = scheduler.sleep

    def monotonic(self) -> float:
        return self._scheduler.now

    def time(self) -> float:
        task = self._scheduler.current
        return EPOCH + self._scheduler.now + (task.process.skew if task else 0.0)


class Condition:
    """`threading.Condition`, and its lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters: deque[Task] = deque()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def acquire(self, *_: object) -> bool:
        return True

    def release(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        task = self._scheduler.current
        assert task
        self._waiters.append(task)
        try:
            return self._scheduler.park(timeout)
        finally:
            if task in self._waiters:
                self._waiters.remove(task)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._scheduler.now
            if left is not None and left <= 0:
                self._scheduler.step()
                return result
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        while n and self._waiters:
            self._scheduler.wake(self._waiters.popleft())
            n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """`threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = Condition(scheduler)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._changed.wait_for(lambda: self._set, timeout))


class Thread:
    """`threading.Thread`, as a task of the process that starts it."""

    def __init__(
        self, scheduler: Scheduler, target: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._scheduler, self._target, self.name = scheduler, target, name
        self._args, self._kwargs = args, kwargs
        self._task: Task | None = None

    def start(self) -> None:
        current = self._scheduler.current
        assert current
        self._task = current.process.spawn(lambda: self._target(*self._args, **self._kwargs), self.name)

    def join(self, timeout: float | None = None) -> None:
        if self._task:
            self._scheduler.join(self._task, timeout)

    def is_alive(self) -> bool:
        return bool(self._task) and not self._task.done


class Threading:
    """The module `threading`, as far as it is used."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Condition(self, _: object = None) -> Condition:
        return Condition(self._scheduler)

    def Lock(self) -> Condition:
        return Condition(self._scheduler)

    RLock = Lock

    def Event(self) -> Event:
        return Event(self._scheduler)

    def Thread(
        self,
        target: Callable[..., Any],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool = True,
    ) -> Thread:
        return Thread(self._scheduler, target, name, args, kwargs or {})

    def current_thread(self) -> Task | None:
        return self._scheduler.current


class Future:
    """`concurrent.futures.Future`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = Condition(scheduler)
        self._done = False
        self._value: Any = None
        self._error: Exception | None = None

    def run(self, work: Callable[[], Any]) -> None:
        try:
            self._value = work()
        except Exception as error:  # noqa: BLE001 - raised by `result`
            self._error = error
        self._done = True
        self._changed.notify_all()

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        if not self._changed.wait_for(lambda: self._done, timeout):
            raise TimeoutError
        if self._error:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> Exception | None:
        self._changed.wait_for(lambda: self._done, timeout)
        return self._error

    def add_done_callback(self, call: Callable[[Future], Any]) -> None:
        raise NotImplementedError


class Executor:
    """`concurrent.futures.ThreadPoolExecutor` without a bound. Its work belongs to the process of whoever submits it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        future = Future(self._scheduler)
        current = self._scheduler.current
        assert current
        current.process.spawn(lambda: future.run(lambda: call(*args, **kwargs)), getattr(call, "__name__", "work"))
        return future

    def map(self, call: Callable[..., Any], items: Any) -> Iterator[Any]:
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        return None


@contextmanager
def replaced(changes: list[tuple[ModuleType | type, str, Any]]) -> Iterator[None]:
    """For the time of the block these attributes are something else; a module that lacks one is left alone."""
    before = [(where, name, vars(where)[name]) for where, name, _ in changes if name in vars(where)]
    try:
        for where, name, value in changes:
            if name in vars(where):
                setattr(where, name, value)
        yield
    finally:
        for where, name, value in reversed(before):
            setattr(where, name, value)
