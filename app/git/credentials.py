"""Credentials of a project, given to git by helpers of ours.

Rules: a token goes to one host, over https, and only in answer to exactly git's question for it, so a redirect to another host or a
submodule elsewhere doesn't get it. A deploy key is a file (mode 0600) in our private directory for as long as the call lasts. Without
either, git has no credentials at all: neither a helper nor a key of the machine is used, unless the deployment gives an ssh agent.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import Invalid
from app.git.remotes import Remote
from app.git.run import Access, Git, write_once

_USER = re.compile(r"[A-Za-z0-9._-]{1,100}\Z")
_ASKPASS = """#!/bin/sh
# Answers git's two questions about one user of one host, and no other.
case "$1" in
"Username for 'https://$BYRE_GIT_HOST': ") printf '%s\\n' "$BYRE_GIT_USER" ;;
"Password for 'https://$BYRE_GIT_USER@$BYRE_GIT_HOST': ") printf '%s\\n' "$BYRE_GIT_TOKEN" ;;
*) exit 1 ;;
esac
"""


@dataclass(frozen=True, repr=False)
class Credentials:
    """A token for https (personal, or of a GitHub App: the default user is what GitHub expects there), or a private key for ssh."""

    token: str | None = None
    user: str = "x-access-token"
    deploy_key: str | None = None

    def __post_init__(self) -> None:
        if not _USER.match(self.user):
            raise Invalid("user must be 1 to 100 letters, digits or ._-", "user")
        if self.token is not None and (not self.token or not self.token.isascii() or not self.token.isprintable()):
            raise Invalid("token must be printable ASCII", "token")
        if self.deploy_key is not None and "PRIVATE KEY-----" not in self.deploy_key:
            raise Invalid("deploy_key must be a private key in PEM or OpenSSH format", "deploy_key")


@contextmanager
def access(git: Git, remote: Remote, credentials: Credentials | None = None, *, ssh_agent: str = "") -> Iterator[Access]:
    """What calls of git to `remote` are given. `ssh_agent` is the socket of an agent for projects without a key ("": none)."""
    given = credentials or Credentials()
    environment = {"GIT_SSH_VARIANT": "ssh"}
    key_directory: Path | None = None
    try:
        if remote.kind == "https" and given.token:
            askpass = git.private / "askpass"
            write_once(askpass, _ASKPASS, 0o700)
            environment |= {
                "GIT_ASKPASS": str(askpass),
                "BYRE_GIT_HOST": remote.host,
                "BYRE_GIT_USER": given.user,
                "BYRE_GIT_TOKEN": given.token,
            }
        if remote.kind == "ssh":
            key = Path("/dev/null")
            if given.deploy_key:
                key_directory = Path(tempfile.mkdtemp(prefix="key-", dir=git.private))
                key = key_directory / "key"
                key.touch(mode=0o600)
                key.write_text(given.deploy_key.rstrip("\n") + "\n")
            elif ssh_agent:
                environment["SSH_AUTH_SOCK"] = ssh_agent
            environment["GIT_SSH_COMMAND"] = _ssh(git, key, agent=bool(ssh_agent) and not given.deploy_key)
        yield Access(environment, files=remote.files)
    finally:
        if key_directory:
            shutil.rmtree(key_directory, ignore_errors=True)


def _ssh(git: Git, key: Path, *, agent: bool) -> str:
    options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=accept-new",
        f"UserKnownHostsFile={git.private / 'known_hosts'}",
        "ConnectTimeout=10",
        "ForwardAgent=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        *([] if agent else ["IdentitiesOnly=yes", "IdentityAgent=none", f"IdentityFile={key}"]),
    ]
    return shlex.join(["ssh", "-F", "/dev/null", *(word for option in options for word in ("-o", option))])
