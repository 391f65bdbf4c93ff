"""Whether a request comes from a page of this server: what a browser's cookie needs beside it before anything is changed.

Rules: a browser says where a request comes from in `Origin` and `Sec-Fetch-Site`, which pages can't set. What says neither is refused:
programs send a token instead of a cookie. Our origin is the one that the request was sent to (`Host`), or the public address where a
proxy has another; if the public address is https, so must be the origin.
"""

from __future__ import annotations

from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def same_origin(origin: str | None, site: str | None, host: str, public_url: str) -> bool:
    """Whether the headers `Origin`, `Sec-Fetch-Site` and `Host` say that a page of ours sent it.

    Sources: RFC 6454 section 7; Fetch Metadata Request Headers (W3C), section 2.4.
    """
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return site is not None
    given = _place(origin)
    if given is None:
        return False
    public = _place(public_url)
    if public is not None and given == public:
        return True
    secure = public is not None and public[0] == "https"
    return (given[0] == "https" or not secure) and given == _place(f"{given[0]}://{host}")


def may_log_in(origin: str | None, site: str | None, host: str, public_url: str) -> bool:
    """Whether a login may come from there: from us, from the address bar, or from no browser at all."""
    if origin is None and site in (None, "none"):
        return True
    return same_origin(origin, None if site == "none" else site, host, public_url)


def secure(public_url: str) -> bool:
    """Whether browsers reach us over https, as far as the deployment says."""
    return public_url.startswith("https://")


def _place(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None for what is no origin, such as `null`."""
    try:
        parts = urlsplit(origin)
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
            return None
        return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]
    except ValueError:
        return None
