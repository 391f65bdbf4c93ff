"""The only place that starts git.

Rules:
- the environment is made here from nothing: no GIT_* of ours or of a harness reaches git, no file of the machine or of a user is read as
  configuration, nothing is ever asked on a terminal;
- nothing that a repository brings can name a program: hooks, fsmonitor, pager, editor, external diffs, textconv and signing are off,
  and only https, ssh and git are spoken (files only where the caller has checked the path). A repository's own configuration is not
  read either: git sees the repository through a `View` (view.py) whose configuration we wrote;
- arguments are a list; what comes from outside is checked by remotes.py and stands behind `--` or `--end-of-options`;
- every call has a limit in time and in output. Over it the whole process group is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from app.git.errors import GitFailed, GitTimeout, GitTooMuch

SECONDS = 60.0  # A call that touches the disk only.
OUTPUT = 64 * 2**20  # Bytes of one answer.
_STDERR = 64 * 2**10  # Of git's complaints, kept; the rest is read and dropped.
_CHUNK = 2**16
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Whose name is on commits that are nobody's: snapshots and carriers.
BYRE = {
    "GIT_AUTHOR_NAME": "Byre",
    "GIT_AUTHOR_EMAIL": "byre@localhost",
    "GIT_COMMITTER_NAME": "Byre",
    "GIT_COMMITTER_EMAIL": "byre@localhost",
}

# Order does not matter; the last of two settings wins in git, and these come after every file.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.editor=false",
    "core.askPass=",
    "core.quotePath=true",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.safecrlf=false",
    "core.logAllRefUpdates=false",
    "core.filesRefLockTimeout=10000",
    "core.packedRefsTimeout=10000",
    "credential.helper=",
    "commit.gpgSign=false",
    "push.gpgSign=false",
    "diff.external=",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "init.templateDir=",
    "protocol.version=2",
    "safe.directory=*",
)
_OPTIONS = [word for setting in _SETTINGS for word in ("-c", setting)]


@dataclass(frozen=True)
class Done:
    """A call that ended: exit status, whole stdout, the beginning of stderr. `cut`: stdout was longer and git was stopped."""

    status: int
    out: bytes
    err: str
    cut: bool = False

    @property
    def text(self) -> str:
        """stdout as text without its last newline; bytes that are no UTF-8 survive as surrogates."""
        return os.fsdecode(self.out).removesuffix("\n")


@dataclass(frozen=True)
class View:
    """How git sees a repository: a directory with our configuration whose objects and refs are the repository's own."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None


@dataclass(frozen=True)
class Access:
    """What a call to a remote needs: environment for askpass and ssh (credentials.py), and whether the remote may be a file."""

    environment: Mapping[str, str] = field(default_factory=dict)
    files: bool = False


class Git:
    """Starts git. `private` is a directory of ours (made, mode 0700) that no harness may write; `path` where programs are found.

    `certificates` are PEM files that are believed beside the machine's own. Raises OSError if one can't be read.
    """

    def __init__(self, private: Path, *, path: str = SEARCH, certificates: Sequence[Path] = ()) -> None:
        self.private = private
        self.path = path
        self.lfs = shutil.which("git-lfs", path=path) is not None
        private.mkdir(parents=True, exist_ok=True, mode=0o700)
        (private / "home").mkdir(exist_ok=True, mode=0o700)
        # A local origin is served by a child that drops our -c settings, but not this file.
        write_once(private / "gitconfig", "[safe]\n\tdirectory = *\n")
        self._environment = {
            "PATH": path,
            "HOME": str(private / "home"),
            "XDG_CONFIG_HOME": str(private / "home"),
            "LC_ALL": "C",
            "TZ": "UTC",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(private / "gitconfig"),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            "GIT_SSH_COMMAND": "false",
            "GIT_EDITOR": "false",
            "GIT_PAGER": "cat",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            # A call without a view runs in our home: no repository around it is found.
            "GIT_CEILING_DIRECTORIES": str(private),
        }
        if certificates:
            machine = ssl.get_default_verify_paths().cafile
            files = [*([Path(machine)] if machine else []), *certificates]
            write_once(private / "certificates.pem", "\n".join(file.read_text() for file in files))
            self._environment["GIT_SSL_CAINFO"] = str(private / "certificates.pem")

    def run(
        self,
        view: View | None,
        *arguments: str,
        input: bytes = b"",
        source: IO[bytes] | None = None,
        settings: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        access: Access | None = None,
        directory: Path | None = None,
        seconds: float = SECONDS,
        limit: int = OUTPUT,
        ok: Sequence[int] = (0,),
        cut: bool = False,
    ) -> Done:
        """Runs `git ARGUMENTS` on a view (None: on no repository at all) and gives what it answered.

        git reads `input`, or the open file `source` from where it stands. `settings` are further `name=value` of ours. `ok` are the
        exit statuses that are an answer, () for all. With `cut`, output over `limit` bytes is cut there instead of refused.
        Raises GitFailed, GitTimeout, GitTooMuch.
        """
        env = dict(self._environment)
        env["GIT_ALLOW_PROTOCOL"] = "" if access is None else "https:ssh:git:file" if access.files else "https:ssh:git"
        if view:
            env["GIT_DIR"] = str(view.git_dir)
        if view and view.work_tree:
            env["GIT_WORK_TREE"] = str(view.work_tree)
        if view and view.index:
            env["GIT_INDEX_FILE"] = str(view.index)
        if access:
            env.update(access.environment)
        env.update(environment or {})
        extra = [word for setting in settings for word in ("-c", setting)]
        where = directory or (view.work_tree if view and view.work_tree else self.private / "home")
        command = next(word for word in arguments if not word.startswith("-"))
        done = _run(command, ["git", *_OPTIONS, *extra, *arguments], env, where, source or input, seconds, limit, cut)
        if ok and not done.cut and done.status not in ok:
            raise GitFailed(command, done.status, done.err or os.fsdecode(done.out[-4096:]))
        return done


def _run(
    command: str,
    argv: list[str],
    env: dict[str, str],
    where: Path,
    data: bytes | IO[bytes],
    seconds: float,
    limit: int,
    cut: bool,
) -> Done:
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=where,
            stdin=(subprocess.PIPE if data else subprocess.DEVNULL) if isinstance(data, bytes) else data,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        missing = "its working directory is gone" if error.filename == str(where) else "git is not installed"
        raise GitFailed(command, 127, missing) from None
    except OSError as error:
        raise GitFailed(command, 126, error.strerror or "it can't be started") from None
    try:
        out, err, over = _talk(process, command, data if isinstance(data, bytes) else b"", seconds, limit, cut)
        if not over:
            try:
                process.wait(max(1.0, seconds))
            except subprocess.TimeoutExpired:
                raise GitTimeout(command, seconds) from None
    finally:
        _end(process)
    return Done(process.returncode, out, err, over)


def _talk(
    process: subprocess.Popen[bytes], command: str, data: bytes, seconds: float, limit: int, cut: bool
) -> tuple[bytes, str, bool]:
    """Feeds and reads git until it closes its output. Gives stdout, stderr, and whether stdout was cut."""
    out: list[bytes] = []
    err: list[bytes] = []
    size = complaints = 0
    end = time.monotonic() + seconds
    rest = memoryview(data)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            assert stream
            selector.register(stream, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                raise GitTimeout(command, seconds)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    rest = _feed(process.stdin, rest)
                    if not rest:
                        selector.unregister(process.stdin)
                        with contextlib.suppress(BrokenPipeError):
                            process.stdin.close()
                    continue
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    if complaints < _STDERR:
                        err.append(chunk)
                    complaints += len(chunk)
                else:
                    out.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        begun = b"".join(out)[:limit]
                        if not cut:
                            raise GitTooMuch(command, limit, begun)
                        return begun, _text(err), True
            if time.monotonic() > end:
                raise GitTimeout(command, seconds)
    return b"".join(out), _text(err), False


def _feed(stdin: IO[bytes], rest: memoryview) -> memoryview:
    try:
        return rest[os.write(stdin.fileno(), rest[:_CHUNK]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]  # It ends without having read all: its status says why.


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills git's process group unless git was waited for, and closes our ends.

    Until it is waited for its number is its own, so that the group is too.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _text(chunks: list[bytes]) -> str:
    return b"".join(chunks).decode("utf-8", "replace")


def write_once(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a small file of ours unless it is there with this text; several processes may do so at once."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.rename(path)
