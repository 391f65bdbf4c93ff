"""A deterministic scheduler: greenlets in virtual time, grouped into processes that can be paused and killed.

Rules: a task gives up the processor only in `sleep`, `park` and what is built on them; who runs next follows from the times alone,
so one seed gives one run. A dead process's tasks end with `Killed` at the place where they wait, and reach nothing outside any more.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import greenlet


class Killed(BaseException):
    """The process is dead."""


class Wedged(BaseException):
    """The run doesn't come to an end."""


class Process:
    """What lives and dies together. `skew` is how far its wall clock is off, in seconds."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler, self.name = scheduler, name
        self.alive = True
        self.paused_until = 0.0
        self.skew = 0.0
        self.tasks: dict[int, Task] = {}

    def spawn(self, target: Callable[[], Any], name: str) -> Task:
        """Starts `target` as a task of this process."""
        return self.scheduler.spawn(self, target, name)

    def resume(self) -> None:
        """A pause ends now, whenever it was to end."""
        self.paused_until = 0.0
        for task in list(self.tasks.values()):
            self.scheduler.release(task)

    def kill(self) -> None:
        """From now on nothing of it runs. The caller, if it is one of its tasks, must raise `Killed` itself."""
        self.alive = False
        self.paused_until = 0.0
        for task in list(self.tasks.values()):
            self.scheduler.wake(task)


class Task:
    """One thread of control. `result` or `error` once it is `done`."""

    def __init__(self, number: int, process: Process, target: Callable[[], Any], name: str) -> None:
        self.number, self.process, self.name = number, process, name
        self.stamp = 0
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self.waiters: list[Task] = []
        self.parked = False
        self.held = False
        self.greenlet = greenlet.greenlet(self._run, process.scheduler.main)
        self._target = target

    def _run(self) -> None:
        try:
            if self.process.alive:
                self.result = self._target()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - kept for whoever waits, or told to on_error
            self.error = error
        self.done = True
        scheduler = self.process.scheduler
        self.process.tasks.pop(self.number, None)
        for waiter in self.waiters:
            scheduler.wake(waiter)
        if self.error and not self.waiters and scheduler.on_error:
            scheduler.on_error(self, self.error)


class Scheduler:
    """Virtual seconds since the start are in `now`. `on_error` hears of exceptions that nobody waits for."""

    def __init__(self, rng: random.Random, max_steps: int) -> None:
        self.rng, self.max_steps = rng, max_steps
        self.now = 0.0
        self.steps = 0
        self.current: Task | None = None
        self.on_error: Callable[[Task, Exception], None] | None = None
        self._heap: list[tuple[float, int, Task, int]] = []
        self._number = 0
        self.main = greenlet.getcurrent()
        self._stopped = False

    def spawn(self, process: Process, target: Callable[[], Any], name: str) -> Task:
        """A task that begins at once."""
        self._number += 1
        task = Task(self._number, process, target, name)
        process.tasks[task.number] = task
        self._push(task, self.now + self.rng.random() * 0.001)
        return task

    def run(self) -> None:
        """Runs until `stop` is called. Raises Wedged when nothing is left to run, or after `max_steps`."""
        self.main = greenlet.getcurrent()
        self._stopped = False
        heap = self._heap
        while not self._stopped:
            if not heap:
                raise Wedged("every task waits for another")
            at, _, task, stamp = heapq.heappop(heap)
            if task.stamp != stamp or task.done:
                continue
            self.now = max(self.now, at)
            paused = task.process.paused_until
            if paused > self.now:
                task.held = True
                self._push(task, paused + self.rng.random() * 0.01)
                continue
            self.step()
            self.current = task
            task.parked = task.held = False
            task.greenlet.switch()
            self.current = None

    def stop(self) -> None:
        """`run` returns when the running task waits next."""
        self._stopped = True

    def sleep(self, seconds: float) -> None:
        """The running task goes on `seconds` later. Raises Killed if its process died meanwhile."""
        task = self.current
        assert task
        if not task.process.alive:
            raise Killed
        at = self.now + seconds
        heap = self._heap
        if self._stopped or task.process.paused_until > at or (heap and heap[0][0] <= at):
            self._push(task, at)
            self.main.switch()
            if not task.process.alive:
                raise Killed
        else:
            self.step()
            self.now = at

    def park(self, seconds: float | None) -> bool:
        """The running task waits to be woken, or until `seconds` have passed (then False). Raises Killed."""
        task = self.current
        assert task
        if not task.process.alive:
            raise Killed
        task.stamp += 1
        task.parked = True
        deadline = None if seconds is None else self.now + max(seconds, 0.0)
        if deadline is not None:
            self._push(task, deadline)
        self.main.switch()
        if not task.process.alive:
            raise Killed
        return deadline is None or self.now < deadline

    def wake(self, task: Task) -> None:
        """Lets a parked (or sleeping) task go on at once."""
        if not task.done and (task.parked or not task.process.alive):
            task.parked = False
            self._push(task, self.now + self.rng.random() * 0.001)

    def release(self, task: Task) -> None:
        """Lets a task go on at once that would have gone on but for the pause of its process."""
        if task.held and not task.done:
            task.held = False
            self._push(task, self.now + self.rng.random() * 0.01)

    def join(self, task: Task, seconds: float | None = None) -> bool:
        """Waits until `task` has ended; whether it has."""
        me = self.current
        assert me
        until = None if seconds is None else self.now + seconds
        while not task.done:
            left = None if until is None else until - self.now
            if left is not None and left <= 0:
                return False
            task.waiters.append(me)
            self.park(left)
            if me in task.waiters:
                task.waiters.remove(me)
        return True

    def close(self, processes: list[Process]) -> None:
        """Ends every task, so that nothing of this run is left."""
        self.on_error = None
        for process in processes:
            process.alive = False
        for process in processes:
            for task in list(process.tasks.values()):
                self.current = task
                self.main = greenlet.getcurrent()
                if task.greenlet:
                    task.greenlet.throw(Killed)
                elif not task.done:
                    task.done = True
        self._heap.clear()

    def step(self) -> None:
        """Counts what is done without waiting, too: a loop that never waits has no end. Raises Wedged."""
        self.steps += 1
        if self.steps > self.max_steps:
            raise Wedged(f"no end after {self.max_steps} steps")

    def _push(self, task: Task, at: float) -> None:
        task.stamp += 1
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, task, task.stamp))
