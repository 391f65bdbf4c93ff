"""What the agent does outside its own head: write a file, run a command, start an orphan, call a tool over the bridge.

Rules: results are the Brain contract's Result. A command runs in a process group of its own, which dies whole when the turn is
interrupted, and its output is bounded in memory.
"""

# No pathlib: it is slow to import.
# ruff: noqa: PTH103, PTH118, PTH120, PTH123

from __future__ import annotations

import contextlib
import json
import os
import signal

from workers.harness.script_agent.wire import Gone, Interrupted, Wire, encoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEEP = 256 * 1024  # bytes of a command's output that are kept at its beginning, and as many at its end
_DRAIN = 32  # reads of 64 KiB: more than a pipe holds


def result(text: str, *, failed: bool = False) -> dict[str, Any]:
    """A Result of one text."""
    return {"content": [{"type": "text", "text": text}]} | ({"is_error": True} if failed else {})


def write_file(root: str, path: str, text: str) -> dict[str, Any]:
    """Writes `text` to `path`, which must lie in `root` after symbolic links. Raises OSError if the disk is full."""
    target = os.path.realpath(os.path.join(root, path))
    if not target.startswith(os.path.realpath(root) + os.sep):
        return result(f"{path} is outside the workspace", failed=True)
    data = encoded(text)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as out:
            out.write(data)
    except OSError as error:
        if is_full(error):
            raise OSError(error.errno, error.strerror, path) from error
        return result(f"{path}: {error.strerror}", failed=True)
    return result(f"Wrote {len(data)} bytes to {path}")


def is_full(error: OSError) -> bool:
    """Whether there is no room (disk, quota, limit), which ends the turn: whatever came next would be lost."""
    return error.errno in (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT; the module `errno` isn't worth its import


def run(wire: Wire, argv: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Runs `argv` in the current directory: exit status (128 + signal if one ended it), and output, both streams in one.

    What it left running in the background goes on. Raises OSError, Interrupted, Gone.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(readable, False)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writable, 1),
        (os.POSIX_SPAWN_DUP2, writable, 2),
    ]
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores them, and that would be inherited
    try:
        pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setpgroup=0, setsigdef=defaults)
    except OSError:
        os.close(readable)
        raise
    finally:
        os.close(writable)
    ended = os.pidfd_open(pid)
    output = _Output()
    try:
        while ended not in wire.wait(None, ended, *output.sources(readable)):
            output.take(readable)
        for _ in range(_DRAIN):  # what it wrote before it ended; a background process may go on for ever
            if not output.take(readable):
                break
    except (Interrupted, Gone):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(ended)
        os.close(readable)
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code), output.text()


class _Output:
    """A command's output as it comes, its middle left out when it is long."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out, self._open = bytearray(), bytearray(), 0, True

    def sources(self, fd: int) -> list[int]:
        return [fd] if self._open else []

    def take(self, fd: int) -> bool:
        """Reads what is there; False if that is nothing."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        self._open = bool(data)
        room = _KEEP - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if (over := len(self._tail) - _KEEP) > 0:
            del self._tail[:over]
            self._left_out += over
        return self._open

    def text(self) -> str:
        gap = f"\n[... {self._left_out} bytes left out ...]\n" if self._left_out else ""
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")


def start_orphan(seconds: float) -> int:
    """Starts a process in its own session, not a child of ours, that sleeps; answers its pid."""
    readable, writable = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            orphan = os.fork()
            if orphan:
                os.write(writable, b"%d" % orphan)
            else:
                null = os.open("/dev/null", os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                os.execvp("sleep", ["sleep", f"{seconds:g}"])  # noqa: S606
        finally:
            os._exit(0)
    os.close(writable)
    os.waitpid(child, 0)
    with open(readable, "rb") as told:
        return int(told.read())


class Bridge:
    """The worker's side of the tools (protocol: Place in base.py). Connects at the first call."""

    def __init__(self, path: str | None) -> None:
        self._path, self._calls = path, 0

    def call(self, wire: Wire, tool: str, arguments: Any) -> dict[str, Any] | None:
        """Calls `tool` and waits for its Result; None without a bridge. Raises OSError if it can't be reached, Interrupted, Gone.

        The worker records the call and its result; an interrupt is a closed connection to it.
        """
        if self._path is None:
            return None
        import socket  # here, for it is a third of the start-up time, and few turns need it

        self._calls += 1
        request = {"id": self._calls, "tool": tool, "arguments": arguments}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(self._path)
            line.sendall(encoded(json.dumps(request, ensure_ascii=False) + "\n"))
            buffer = b""
            while True:
                wire.wait(None, line.fileno())
                data = line.recv(1 << 16)
                if not data:
                    return result("the tool bridge closed the connection", failed=True) | {"unknown_outcome": True}
                *whole, buffer = (buffer + data).split(b"\n")
                for answer in map(json.loads, whole):
                    if answer["id"] == self._calls and "result" in answer:
                        return dict(answer["result"])
