"""What may come from outside before git sees it: addresses, directories, branch names, object ids.

Rules: what isn't plainly allowed is refused, as `Invalid` with the field's name, and git isn't started. Of addresses only https, ssh
(also as `user@host:path`) and git are taken, and files only below the repository roots, after every link in their path was followed.
Nothing begins with a dash, holds white space or a control character, or names a transport helper (`ext::`). Users and passwords in
https addresses are never kept.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.core.errors import Invalid

Kind = Literal["https", "ssh", "git", "file"]

_URL = re.compile(
    r"(?P<scheme>https|ssh|git)://"
    r"(?:(?P<user>[A-Za-z0-9._~%+-]+)(?P<password>:[^@/\s]*)?@)?"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"/(?P<path>[^\s\\?#]*)\Z"
)
_SCP = re.compile(
    r"(?:(?P<user>[A-Za-z0-9._][A-Za-z0-9._-]*)@)?(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?):(?P<path>[^\s\\:]+)\Z"
)
_OBJECT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.lock(?:/|\Z)|(?:\A|/)\.|\.\Z|/\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NUMBER = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)\Z")
_MAX_URL = 2048
_MAX_REF = 200


@dataclass(frozen=True)
class Remote:
    """An address that git may be given: `url` without credentials. `host` (with its port, as git asks for passwords) is "" for files."""

    kind: Kind
    url: str
    host: str = ""

    @property
    def files(self) -> bool:
        """Whether it is a path on this machine, checked to lie under the roots."""
        return self.kind == "file"


def is_address(text: str) -> bool:
    """Whether `text` looks like a git URL rather than a directory; it may still be refused."""
    return "://" in text or "::" in text or (":" in text and not text.startswith("/"))


def remote(text: str, roots: Sequence[Path], field: str = "repo_path", *, strip: bool = False) -> Remote:
    """The address that `text` names. Raises Invalid.

    `strip`: credentials in it are dropped (an origin that a repository names); else they are refused (one that a caller gave).
    """
    if not text or len(text) > _MAX_URL or _CONTROL.search(text) or text.startswith("-") or not text.isprintable():
        raise Invalid(f"{field} is not an address of a git repository", field)
    if text.startswith(("/", "file://")):
        path = directory(text.removeprefix("file://"), roots, field)
        return Remote("file", str(path))
    found = _URL.match(text)
    if found:
        return _from_url(found, field, strip)
    found = _SCP.match(text)
    if found and "::" not in text and "://" not in text and not found["path"].startswith(("-", "~-")):
        _check_host(found["host"], field)
        return Remote("ssh", text, found["host"])
    raise Invalid(f"{field}: only https, ssh and git addresses are allowed, and directories under the repository roots", field)


def _from_url(found: re.Match[str], field: str, strip: bool) -> Remote:
    scheme, user, host, port = found["scheme"], found["user"], found["host"], found["port"]
    _check_host(host, field)
    if port and not 0 < int(port) < 65536:
        raise Invalid(f"{field} has no valid port", field)
    if found["password"] is not None or (user and scheme != "ssh"):
        if not strip:
            raise Invalid(f"{field} must not hold credentials: set them for the project", field)
        user = user if scheme == "ssh" else None
    if not found["path"] or found["path"].startswith("-") or (user and user.startswith("-")):
        raise Invalid(f"{field} names no repository", field)
    where = host + (f":{port}" if port else "")
    kind: Kind = "https" if scheme == "https" else "ssh" if scheme == "ssh" else "git"
    return Remote(kind, f"{scheme}://{user + '@' if user else ''}{where}/{found['path']}", where)


def _check_host(host: str, field: str) -> None:
    """Raises Invalid for a host that is no address although it looks like one, or one that no git server has.

    Hosts of a private network are allowed: that is where many keep their git. Metadata services of clouds are link-local.
    """
    try:
        if host.startswith("["):
            address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv6Address(host[1:-1])
            address = address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address
        elif _NUMBER.match(host.rsplit(".", 1)[-1]):
            address = ipaddress.IPv4Address(host)  # "0x7f.1" and "2130706433" are addresses to some, and to us none
        else:
            return
    except ValueError:
        raise Invalid(f"{field} has no valid host", field) from None
    if address.is_link_local or address.is_unspecified or address.is_multicast or address.is_reserved:
        raise Invalid(f"{field} has a host that no git server has", field)


def directory(text: str, roots: Sequence[Path], field: str = "repo_path") -> Path:
    """The directory that `text` names, all links followed. Raises Invalid unless it is there and lies under one of `roots`."""
    if not text.startswith("/") or _CONTROL.search(text) or len(os.fsencode(text)) > 4096:
        raise Invalid(f"{field} must be an absolute path", field)
    if not roots:
        raise Invalid(f"{field}: this server takes no directories, only addresses of git repositories", field)
    path = resolved(Path(text))
    if path is None or not within(path, roots):
        # The same answer for both: whether a path outside of the roots exists is nobody's business.
        raise Invalid(f"{field}: there is no such directory under the repository roots", field)
    if not path.is_dir():
        raise Invalid(f"{field} is not a directory", field)
    return path


def accepted(text: str, roots: Sequence[Path], field: str, *, strip: bool = False) -> Remote:
    """As `remote`, for the origin of a project that there is: a directory that went from below `roots` is an origin that doesn't answer.

    Only below them, for whether a path outside of the roots exists is nobody's business. Raises Invalid.
    """
    place = Path(text.removeprefix("file://"))
    if place.is_absolute() and not _CONTROL.search(text) and not os.path.lexists(place):
        place = Path(os.path.normpath(place))
        left = next(path for path in place.parents if os.path.lexists(path))
        top = resolved(left)
        if top and within(top, roots) and len(os.fsencode(place)) <= 4096:
            return Remote("file", str(top / place.relative_to(left)))
    return remote(text, roots, field, strip=strip)


def resolved(path: Path) -> Path | None:
    """`path` with all links followed, None if it isn't there or can't be looked at."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None


def within(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a resolved `path` is one of `roots` or lies below one."""
    tops = [top for root in roots if (top := resolved(root))]
    return any(path.is_relative_to(top) for top in tops)


def is_object(text: str) -> bool:
    """Whether `text` is a full object id, in lower case."""
    return bool(_OBJECT.match(text))


def object_id(text: str, field: str) -> str:
    """`text`, if it is a full object id (40 or 64 hex digits). Raises Invalid."""
    lowered = text.lower()
    if not is_object(lowered):
        raise Invalid(f"{field} must be a full object id of 40 or 64 hex digits", field)
    return lowered


def branch(text: str, field: str = "branch") -> str:
    """`text`, if it is a branch name by git's rules (git-check-ref-format) and ours (at most 200 bytes). Raises Invalid."""
    bad = not text or text.startswith(("-", "/")) or text in ("@", "HEAD") or bool(_BAD_IN_REF.search(text))
    try:
        bad = bad or len(text.encode()) > _MAX_REF
    except UnicodeEncodeError:
        bad = True
    if bad:
        raise Invalid(f"{field} is not the name of a branch", field)
    return text
