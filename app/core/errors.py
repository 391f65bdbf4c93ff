"""Errors, named by what the caller must do about them.

Rules: each is raised where the fault is found and mapped to HTTP in one place (`app/http/errors.py`). `message` is shown to
callers, so it names the field or thing at fault and never an internal detail. Nothing here knows of HTTP.
"""

from __future__ import annotations


class ByreError(Exception):
    """Base of every error that a caller may see. `code` is the contract's error code, `message` one sentence."""

    code = "brain_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(ByreError):
    """The request is wrong; repeating it can't help. `field` is the JSON path or parameter at fault, if there is one."""

    code = "invalid_request"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthorized(ByreError):
    """No token, or one that isn't valid (any more)."""

    code = "unauthorized"


class Forbidden(ByreError):
    """A valid token whose scope doesn't reach this."""

    code = "forbidden"


class Missing(ByreError):
    """No such object in the caller's tenant."""

    code = "not_found"


class Conflict(ByreError):
    """The object's present state doesn't allow it; look at the state, then decide again."""

    code = "conflict"


class CursorUnavailable(Conflict):
    """A cursor that is foreign, from the future, or of a lost tail. `earliest` is a cursor from which reading works."""

    code = "cursor_unavailable"

    def __init__(self, message: str, earliest: str) -> None:
        super().__init__(message)
        self.earliest = earliest


class TooLarge(ByreError):
    """Over a documented size bound."""

    code = "body_limit"


class Unsupported(ByreError):
    """Well formed, but this deployment or harness can't do it."""

    code = "unsupported"


class Overloaded(ByreError):
    """A bound is reached (queue, streams, calls); try again after `retry_after` seconds."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(ByreError):
    """The store or Redis can't be reached, or didn't settle in time; try again after `retry_after` seconds."""

    code = "unavailable"

    def __init__(self, message: str, retry_after: int = 2) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Corrupt(ByreError):
    """A stored object fails its checksum. `key` names it; the session is frozen, nothing is repaired."""

    code = "brain_error"

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class Fenced(ByreError):
    """This worker no longer holds the lease: stop the harness, write nothing more."""

    code = "conflict"


class IllegalStep(ByreError):
    """A life cycle has no such transition: a bug of ours, not the caller's."""
