"""Tells people of inbox items: takes what is due, sends it, notes what became of it.

Rules: a wake-up is only a hint, the poll is the truth. Sending has its own threads and bounds, so it holds up no turn: a push service that
is mute costs one of `ITEMS` threads for as long as a message may take. If the thread that takes dies the worker stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog

from app.coord.coord import RedisCoord
from app.coord.pushes import Pushes
from app.core.errors import ByreError, Unavailable
from app.log.hub import Hub
from app.log.log import Log
from app.push.rules import Manner
from app.push.sender import Device, Result, Sender
from app.services.entities import Entities
from app.services.push_devices import PushDevices
from app.services.push_ledger import ROUND_SECONDS, PushLedger
from app.services.users import Users
from app.services.workspace_log import WorkspaceLog
from app.store import keys
from app.store.contract import Store, StoreError

POLL_SECONDS = 5.0
ITEMS = 8
"""Items that are worked on at once."""
SENDS = 16
"""Messages that are sent at once."""
GRACE_SECONDS = 3.0

logger = structlog.get_logger(__name__)


class Push:
    """Of one worker. `tenants` gives every tenant that there is; `failed` is called if the thread dies."""

    def __init__(
        self,
        pushes: Pushes,
        ledger: PushLedger,
        devices: PushDevices,
        sender: Sender,
        tenants: Callable[[], Iterator[str]],
        failed: Callable[[], None],
    ) -> None:
        self._pushes, self._ledger, self._devices, self._sender = pushes, ledger, devices, sender
        self._tenants, self._failed = tenants, failed
        self._closed, self._woken = threading.Event(), threading.Event()
        self._free = threading.BoundedSemaphore(ITEMS)
        self._items = ThreadPoolExecutor(ITEMS, thread_name_prefix="push-item")
        self._sends = ThreadPoolExecutor(SENDS, thread_name_prefix="push-send")
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def wake(self) -> None:
        """Something may be due."""
        self._woken.set()

    def close(self) -> None:
        """Ends it; what is being sent has `GRACE_SECONDS`, then it is left to another worker."""
        self._closed.set()
        self._woken.set()
        self._thread.join(5)
        last = threading.Timer(GRACE_SECONDS, self._sender.stop)
        last.daemon = True
        last.start()
        self._items.shutdown(wait=True, cancel_futures=True)
        self._sends.shutdown(wait=True)
        last.cancel()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._woken.clear()
                try:
                    if not self._round():
                        self._woken.wait(POLL_SECONDS)
                except (Unavailable, StoreError) as error:
                    logger.warning("push cut short", why=str(error))
                    self._closed.wait(POLL_SECONDS)
        except Exception:
            logger.exception("the pushing thread died")
            self._failed()

    def _round(self) -> bool:
        """Takes what is due; whether there was something."""
        if self._pushes.scan():
            for tenant in self._tenants():
                for item in self._ledger.stray(tenant):
                    self._pushes.ring(tenant, item)
        found = self._pushes.take(ROUND_SECONDS + 10)
        for tenant, item in found:
            while not self._free.acquire(timeout=1):
                if self._closed.is_set():
                    return False
            self._items.submit(self._guarded, tenant, item)
        return bool(found)

    def _guarded(self, tenant: str, item: str) -> None:
        try:
            self._item(tenant, item)
        except (ByreError, StoreError) as error:
            # it comes up again by itself
            logger.warning("an inbox item was not told", item=item, why=str(error))
        except Exception:
            logger.exception("an inbox item was not told", item=item)
        finally:
            self._free.release()

    def _item(self, tenant: str, item: str) -> None:
        taken = self._ledger.begin(tenant, item)
        wait = taken.wait
        if taken.devices:

            def send(device: Device) -> Result:
                return self._send(device, taken.message, taken.manner, taken.topic)

            results = dict(zip(taken.devices, self._sends.map(send, taken.devices.values()), strict=True))
            wait = self._ledger.settle(tenant, item, results)
            for sha, result in results.items():
                logger.info("push", item=item, device=sha[:12], outcome=result.outcome, why=result.why)
                if result.outcome == "gone":
                    self._devices.drop(taken.devices[sha])
        if wait is None:
            self._pushes.forget(tenant, item)
        else:
            self._pushes.again(tenant, item, wait)

    def _send(self, device: Device, message: bytes, manner: Manner, topic: str) -> Result:
        try:
            return self._sender.send(device, message, manner, topic)
        except ByreError as error:
            return Result("retry", error.message)


def open_push(
    store: Store,
    log: Log,
    hub: Hub,
    coord: RedisCoord,
    devices: PushDevices,
    sender: Sender,
    public_url: str,
    failed: Callable[[], None],
) -> Push:
    """The part of a worker that tells people, not yet started."""
    entities = Entities(store, WorkspaceLog(log))
    ledger = PushLedger(store, entities, Users(entities), devices, coord.pushes.may_tell, public_url)
    push = Push(coord.pushes, ledger, devices, sender, lambda: entities.names(keys.tenants_prefix()), failed)
    hub.listen(coord.pushes.channel, lambda _: push.wake())
    return push
