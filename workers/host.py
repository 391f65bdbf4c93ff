"""One harness process of a session: started, read, told things, killed.

Rules: its tree is dead before `stop` returns or the failure is raised; its readers end with it. What it says on stderr is kept only
as the last few KiB, for the message of a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections import deque
from pathlib import Path

import structlog

from app.core.redact import Redactor
from workers.bridge.server import BridgeServer, Caller
from workers.harness.base import Adapter, Keep, Output, Place, ProtocolError, Send
from workers.harness.lines import Item, LineReader, Lost
from workers.mailbox import Mailbox
from workers.process import Child, Deaf, Guardian
from workers.protocol_errors import Kept, ProtocolErrors

STDERR_KEPT = 4096
KEPT = "byre-kept"
"""File in the harness's home that holds what its adapter asked to Keep."""
CACHES = frozenset({".cache", ".npm", "tmp", "node_modules", "__pycache__"})
"""Folders in a harness's home that can be made anew."""

logger = structlog.get_logger(__name__)


def native_files(adapter: Adapter, place: Place) -> list[Path]:
    """The files that are a harness's native state, as far as they exist; of a directory all that are in it.

    Links aren't followed, for the agent could have made them: what it can't read itself must not get into its checkpoint.
    """
    found: list[Path] = []
    for path in (place.home / KEPT, *adapter.native_paths(place)):
        if path.resolve() != place.home.resolve() / path.relative_to(place.home):
            continue
        if path.is_dir():
            found += _below(path)
        elif path.is_file():
            found.append(path)
    return list(dict.fromkeys(found))


def _below(folder: Path) -> list[Path]:
    found: list[Path] = []
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in CACHES)
        paths = (Path(here, name) for name in sorted(files))
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    return found


def _kept(place: Place) -> bytes:
    path = place.home / KEPT
    return path.read_bytes() if path.is_file() else b""


class Host:
    """A running harness of one session. Made by `start`; one owner, who calls `stop`."""

    def __init__(
        self,
        child: Child,
        adapter: Adapter,
        place: Place,
        mailbox: Mailbox,
        errors: ProtocolErrors,
        bridge: BridgeServer,
        redactor: Redactor,
    ) -> None:
        self.child, self.adapter, self.place, self._bridge = child, adapter, place, bridge
        self._mailbox, self._errors, self._source = mailbox, errors, mailbox.fresh()
        self._redactor = redactor
        self._stderr: deque[bytes] = deque(maxlen=16)
        self._last_error: Kept | None = None
        self.heard = time.monotonic()  # when it last said something that made sense
        self._readers = [
            LineReader(child.stdout.fileno(), adapter.line_limit, ends=True),
            LineReader(child.stderr.fileno(), STDERR_KEPT),
        ]
        self._threads = [
            threading.Thread(target=self._read_output, name="harness-out", daemon=True),
            threading.Thread(target=self._read_stderr, name="harness-err", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def start(
        cls,
        guardian: Guardian,
        adapter: Adapter,
        place: Place,
        deadline: float,
        mailbox: Mailbox,
        errors: ProtocolErrors,
        caller: Caller,
        redactor: Redactor,
    ) -> Host:
        """Starts the harness with a bridge to `caller`; it is killed when the monotonic clock passes `deadline`.

        What is kept of its stderr and of its bad lines is masked with `redactor`. Without native state it is a fresh start.
        Raises SpawnFailed, GuardianLost, OSError.
        """
        fresh = place.fresh or not native_files(adapter, place)
        bridge = BridgeServer(caller)
        place = dataclasses.replace(place, bridge_socket=bridge.path, fresh=fresh, kept=_kept(place))
        try:
            child = guardian.spawn(adapter.command(place), env=adapter.environment(place), cwd=place.cwd, deadline=deadline)
        except BaseException:
            bridge.close()
            raise
        return cls(child, adapter, place, mailbox, errors, bridge, redactor)

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr."""
        return self._redactor.text(b"\n".join(self._stderr).decode(errors="replace"))[-STDERR_KEPT:]

    def stop(self) -> None:
        """Kills the whole tree and ends the readers. Raises StillAlive or GuardianLost if its death can't be proven."""
        try:
            self.child.kill()
        finally:
            self._mailbox.fresh()  # a reader that waits for room must not outlive its process
            self._bridge.close()
            for reader in self._readers:
                reader.stop()
            for thread in self._threads:
                thread.join(5)
            for reader in self._readers:
                with contextlib.suppress(OSError):
                    reader.close()
            self.child.close()

    def native_files(self) -> list[Path]:
        """The files that are its native state, as far as they exist."""
        return native_files(self.adapter, self.place)

    def _read_output(self) -> None:
        reader = self._readers[0]
        with contextlib.suppress(EOFError, OSError):
            while True:
                outputs: list[Output] = []
                size = 0
                for line in reader.read():
                    try:
                        outputs += self._decode(line)
                        size += len(line) if isinstance(line, bytes) else 0
                    except ProtocolError as error:
                        self._last_error = self._errors.add(
                            self.adapter.name, self.place.tenant, self.place.session_id, self._masked(error)
                        )
                outputs = self._answered(outputs)
                if outputs:
                    self.heard = time.monotonic()
                    self._mailbox.put(outputs, self._source, size)
        self._mailbox.ended(self._source)

    def _masked(self, error: ProtocolError) -> ProtocolError:
        raw = error.raw.decode(errors="surrogateescape")
        shown = self._redactor.text(raw[: len(raw) - self._redactor.held(raw)])
        return ProtocolError(self._redactor.text(error.reason), shown.encode(errors="surrogateescape"), error.size)

    def _decode(self, line: Item) -> list[Output]:
        if isinstance(line, ProtocolError):
            raise line
        if isinstance(line, Lost):
            if self._last_error:
                self._last_error.size = line.size  # it was noted when it passed the limit
            return self.adapter.lost(line.head, line.tail)
        return self.adapter.decode(line)

    def _answered(self, outputs: list[Output]) -> list[Output]:
        """Writes what is to be sent or kept, and gives the rest."""
        for output in outputs:
            if isinstance(output, Keep):
                (self.place.home / KEPT).write_bytes(output.data)
            if isinstance(output, Send):
                try:
                    self.child.send(output.data)
                except Deaf as error:
                    logger.warning("the harness didn't take an answer", session=self.place.session_id, why=str(error))
        return [output for output in outputs if not isinstance(output, Send | Keep)]

    def _read_stderr(self) -> None:
        reader = self._readers[1]
        with contextlib.suppress(EOFError, OSError):
            while True:
                for line in reader.read():
                    self._stderr.append(
                        line if isinstance(line, bytes) else line.raw if isinstance(line, ProtocolError) else line.tail
                    )
