"""What `BYRE_OUTGOING_ALLOW` allows: hosts that may be anywhere and speak plain http, and certificates to believe.

Rules: an entry is `HOST`, `HOST:PORT` (IPv6 in brackets) or the absolute path of a PEM file. A host counts by its name as it stands in an
address, not by what the name resolves to; without a port every port of it is allowed. A certificate is believed for every host,
whose name it must still carry.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?\Z")


class Allow:
    """The allowed hosts, and a TLS context that believes the allowed certificates. Raises ValueError for a wrong entry."""

    def __init__(self, entries: Sequence[str] = ()) -> None:
        self._hosts: set[tuple[str, int | None]] = set()
        self.tls = ssl.create_default_context()
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.tls.set_alpn_protocols(["http/1.1"])
        for entry in entries:
            if entry.startswith("/"):
                self._certificates(Path(entry))
            else:
                self._hosts.add(_host(entry))

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Whether (host, port) is allowed wherever it is; `host` as `normal_host` gives it."""
        host, port = place
        return (host, None) in self._hosts or (host, port) in self._hosts

    def _certificates(self, path: Path) -> None:
        try:
            self.tls.load_verify_locations(cafile=str(path))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"names {path}, which can't be read as PEM certificates ({error.strerror or error})") from None


def normal_host(host: str) -> str:
    """A host as it is compared: lower case, no dot at its end, addresses in their shortest form, names as they go over the wire.

    Raises ValueError.
    """
    host = host.lower().removesuffix(".")
    try:
        return ip_address(host).compressed
    except ValueError:
        pass
    try:
        wire = host.encode("idna").decode()
    except UnicodeError:
        raise ValueError("is not the name of a host") from None
    if not re.fullmatch(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", wire):
        raise ValueError("is not the name of a host")
    return wire


def _host(entry: str) -> tuple[str, int | None]:
    found = _HOST.match(entry)
    try:
        if not found:
            raise ValueError
        port = int(found["port"]) if found["port"] else None
        if port is not None and not 1 <= port <= 65535:
            raise ValueError
        return IPv6Address(found["six"]).compressed if found["six"] else normal_host(found["name"]), port
    except ValueError:
        raise ValueError(f"must have HOST, HOST:PORT or the absolute path of a PEM file, not {entry!r}") from None
