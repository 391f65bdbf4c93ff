"""Sends one message to one device: encrypted for it (RFC 8291), signed by us (RFC 8292), over the guarded client.

Rules: the endpoint is an address that a user gave us; it never appears in a log or an error, nor does the device's key.
"""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from app.outgoing.client import Outgoing
from app.outgoing.errors import OutgoingError, Refused
from app.outgoing.push_session import PushSession
from app.push import rules
from app.push.rules import Manner, Outcome
from app.push.vapid import Vapid

SECONDS = 10.0
"""For one message, all of it."""


class Device(NamedTuple):
    """A browser's subscription, and whose it is. `id` is the SHA-256 of its endpoint."""

    id: str
    tenant: str
    login: str
    token_id: str
    endpoint: str
    p256dh: str
    auth: str
    created_at: str


class Result(NamedTuple):
    """What became of a message. `why` is for the ledger; `retry_after` in seconds, if the push service said one."""

    outcome: Outcome
    why: str = ""
    retry_after: float | None = None


class Sender:
    """Safe for threads. `clock` gives Unix seconds."""

    def __init__(self, outgoing: Outgoing, vapid: Vapid, clock: Callable[[], float] = time.time) -> None:
        self._outgoing, self._vapid, self._clock = outgoing, vapid, clock
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends what is being sent: it counts as not sent."""
        self._stopped.set()

    def send(self, device: Device, message: bytes, manner: Manner, topic: str) -> Result:
        """One attempt. Raises Unavailable, Corrupt if our own key can't be had."""
        from pywebpush import WebPusher, WebPushException  # a third of a second and 20 MB, for those who send something

        try:
            target = self._outgoing.check(device.endpoint)
            audience = f"{'https' if target.secure else 'http'}://{target.authority}"
            headers = {
                "Authorization": self._vapid.authorization(audience, self._clock()),
                "Urgency": manner.urgency,
                "Topic": topic,
            }
            info = {"endpoint": device.endpoint, "keys": {"p256dh": device.p256dh, "auth": device.auth}}
            pusher = WebPusher(info, requests_session=PushSession(self._outgoing, self._stopped.is_set))
            answer = pusher.send(message, headers, ttl=manner.ttl, timeout=SECONDS)
        except Refused as error:
            return Result("failed", str(error))
        except OutgoingError as error:
            return Result("retry", str(error))
        except (WebPushException, ValueError):
            return Result("failed", "the subscription's keys can't be used")
        return Result(
            rules.outcome(answer.status_code),
            f"the push service answered {answer.status_code}",
            self._seconds(answer.headers.get("retry-after")),
        )

    def _seconds(self, given: str | None) -> float | None:
        """A Retry-After in seconds; it may be a number or a date (RFC 9110 section 10.2.3)."""
        if not given:
            return None
        if given.strip().isdigit():
            return float(given.strip()[:9])
        try:
            return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - self._clock())
        except ValueError:
            return None
