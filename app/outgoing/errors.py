"""How a request to somebody else's address can fail, told apart by whether anything was sent.

Rules: a message says what happened and never names the address: it may end up in front of a user to whom the address is none of their
business.
"""

from __future__ import annotations


class OutgoingError(Exception):
    """Base. `sent`: whether a byte of the request may have reached the other side."""

    sent = False


class Refused(OutgoingError):
    """We don't go there: not https, not public, not an address at all. Nothing was sent; repeating can't help."""


class NotSent(OutgoingError):
    """It can't be reached: no such name, no connection, no good certificate. Nothing was sent; a repeat is harmless."""


class Lost(OutgoingError):
    """It broke off, took too long or was told to stop after something was sent: what the other side made of it isn't known."""

    sent = True


class TooMuch(Lost):
    """The answer is larger than its limit."""
