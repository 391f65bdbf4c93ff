"""The guardian: one small single-threaded process per worker that starts its harnesses and kills them whole.

Rules: it is in its own session and deaf to SIGTERM, SIGINT and SIGHUP, so that only its worker ends it: when the worker's end
of the socket closes it kills everything and exits. It never waits for the worker (which may be stopped), so deadlines hold
whatever the worker does. A tree is reported gone only when that is proven. Each harness lives under a keeper of its own
(keeper.py). Standard library only: it must start fast and be small.

Frames in both directions: four bytes of length, then a marshalled dict (both ends run the same interpreter).
Requests: `{op: "spawn", id, marker, argv, env, cwd, limits, deadline}` with three descriptors, `{op: "deadline", id, at}`,
`{op: "kill", id}`. Reports: `{id, event: "started", pid, keeper}`, `{id, event: "failed", errno, step}`,
`{id, event: "gone", status, cause}`.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import sys
import time

from workers import keeper, lives, proctree

TYPE_CHECKING = False  # importing `typing` would cost 1 MB
if TYPE_CHECKING:
    from typing import Any

_LAST_EFFORT_SECONDS = 60.0  # how long an unkillable process (state D) keeps a guardian without a worker
_BURST_SECONDS = 0.003  # of killing again and again in one go: what forks and exits all the time must be met in between


class Tree:
    """One harness with all its descendants. `keeper` is 0 once that has ended, `leader` 0 while it isn't safely known."""

    def __init__(self, number: int, marker: str, report: int, control: int, keeper_pid: int, deadline: float | None) -> None:
        self.number, self.marker, self.report, self.control = number, marker, report, control
        self.keeper, self.leader, self.deadline = keeper_pid, 0, deadline
        self.cause, self.status = "", -int(signal.SIGKILL)
        self.text = b""
        self.again, self.delay = 0.0, 0.001


class Guardian:
    """The loop. `channel` is the socket to the worker, `life` the directory for records (lives.py)."""

    def __init__(self, channel: socket.socket, life: str) -> None:
        self.channel, self.life = channel, life
        self.trees: dict[int, Tree] = {}
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.descriptors: list[int] = []
        self.me = os.getpid()
        self.worker_gone_at: float | None = None

    def run(self) -> None:
        """Serves until the worker is gone and nothing is left, or cannot be killed within a minute."""
        while self.worker_gone_at is None or self.trees:
            self._wait()
            self._reap()
            now = time.monotonic()
            for tree in list(self.trees.values()):
                if not tree.cause and tree.deadline is not None and tree.deadline <= now:
                    self._doom(tree, "deadline")
                if tree.cause and tree.again <= now:
                    self._kill(tree)
            if self.worker_gone_at is not None and now > self.worker_gone_at + _LAST_EFFORT_SECONDS:
                return  # the records stay, for the next life
        self._flush()
        lives.end(self.life)

    def _wait(self) -> None:
        poll = select.poll()
        if self.worker_gone_at is None:
            poll.register(self.channel, select.POLLIN | (select.POLLOUT if self.outgoing else 0))
        reports = {tree.report: tree for tree in self.trees.values() if tree.report >= 0}
        for fd in reports:
            poll.register(fd, select.POLLIN)
        times = [tree.again if tree.cause else tree.deadline for tree in self.trees.values()]
        soonest = min((at for at in times if at is not None), default=None)
        wait = None if soonest is None else max(0.0, (soonest - time.monotonic()) * 1000)
        for fd, what in poll.poll(wait):
            if fd in reports:
                self._hear_keeper(reports[fd])
            else:
                if what & select.POLLOUT:
                    self._flush()
                if what & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._hear_worker()

    # -- the worker's end

    def _hear_worker(self) -> None:
        try:
            data, notes, _, _ = self.channel.recvmsg(1 << 16, socket.CMSG_SPACE(64 * 4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, notes = b"", []
        for _, _, raw in notes:
            self.descriptors += [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw) - 3, 4)]
        if not data:
            self.worker_gone_at = time.monotonic()
            for tree in self.trees.values():
                self._doom(tree, "worker")
            return
        self.incoming += data
        while len(self.incoming) >= 4 and len(self.incoming) >= (end := 4 + int.from_bytes(self.incoming[:4], "big")):
            frame = marshal.loads(self.incoming[4:end])  # noqa: S302 - from our own parent, over a socketpair
            del self.incoming[:end]
            self._obey(frame)

    def _obey(self, frame: dict[str, Any]) -> None:
        if frame["op"] == "spawn":
            stdio, self.descriptors = self.descriptors[:3], self.descriptors[3:]
            try:
                self._spawn(frame, stdio)
            except OSError as error:
                self._report(id=frame["id"], event="failed", errno=error.errno or 0, step="spawn")
            finally:
                for fd in stdio:
                    os.close(fd)
            return
        tree = self.trees.get(frame["id"])
        if tree is None:
            return  # gone already, and reported
        if frame["op"] == "kill":
            self._doom(tree, "killed")
        elif frame["op"] == "deadline":
            tree.deadline = frame["at"]

    def _spawn(self, frame: dict[str, Any], stdio: list[int]) -> None:
        marker = frame["marker"]
        lives.record(self.life, marker, {})  # before there is anything to lose: the marker alone finds it
        report, keepers_report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        keepers_control, control = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError:
            os.close(report)
            os.close(control)
            lives.forget(self.life, marker)
            raise
        finally:
            if os.getpid() == self.me:
                os.close(keepers_report)
                os.close(keepers_control)
        if pid == 0:
            keeper.run(frame, stdio, keepers_report, keepers_control)
        self.trees[frame["id"]] = Tree(frame["id"], marker, report, control, pid, frame["deadline"])

    def _report(self, **frame: Any) -> None:
        body = marshal.dumps(frame)
        self.outgoing += len(body).to_bytes(4, "big") + body
        self._flush()

    def _flush(self) -> None:
        """Sends what the socket takes. Bounded without a limit: each report answers a request or ends a tree."""
        try:
            while self.outgoing:
                del self.outgoing[: self.channel.send(self.outgoing)]
        except BlockingIOError:
            return
        except OSError:
            self.outgoing.clear()  # nobody reads it any more

    # -- the keepers' end

    def _hear_keeper(self, tree: Tree) -> None:
        try:
            data = os.read(tree.report, 4096)
        except BlockingIOError:
            return
        if not data:
            os.close(tree.report)
            tree.report = -1
            self._doom(tree, "keeper")
            return
        *lines, tree.text = (tree.text + data).split(b"\n")
        for line in lines:
            what, number, *rest = line.split()
            if what == b"S":
                self._started(tree, int(number))
            elif what == b"F":
                self._report(id=tree.number, event="failed", errno=int(number), step=rest[0].decode())
                self._doom(tree, "failed")
            else:
                tree.status = int(number)
                self._doom(tree, "exit")

    def _started(self, tree: Tree, leader: int) -> None:
        tree.leader = leader
        try:
            lives.record(self.life, tree.marker, {"keeper": tree.keeper, "leader": leader})
        except OSError as error:  # no room to note it: then it mustn't run
            self._report(id=tree.number, event="failed", errno=error.errno or 0, step="record")
            self._doom(tree, "failed")
            return
        self._report(id=tree.number, event="started", pid=leader, keeper=tree.keeper)

    # -- killing

    def _doom(self, tree: Tree, cause: str) -> None:
        if not tree.cause:
            tree.cause, tree.again = cause, 0.0

    def _kill(self, tree: Tree) -> None:
        """One go at a doomed tree: kill all that is there; when nothing is, prove it, end the keeper, prove it again."""
        while tree.keeper:
            if not self._clear(tree.keeper, set()):
                return self._later(tree)
            # Nothing can leave the keeper's tree; still, look for what claims to be of it, in case a keeper was killed once.
            outside = proctree.kin(proctree.everyone(), tree.leader or None, tree.marker)
            outside = [process for process in outside if process.pid not in (self.me, tree.keeper)]
            for process in outside:
                proctree.strike(process)
            if outside:
                return self._later(tree)
            os.kill(tree.keeper, signal.SIGKILL)
            os.waitpid(tree.keeper, 0)
            tree.keeper = 0
        # Whatever is our own child and no keeper came from a keeper that ended, and such a tree is always doomed.
        if not self._clear(self.me, {other.keeper for other in self.trees.values() if other.keeper}):
            return self._later(tree)
        del self.trees[tree.number]
        for fd in (tree.report, tree.control):
            if fd >= 0:
                os.close(fd)
        lives.forget(self.life, tree.marker)
        self._report(id=tree.number, event="gone", status=tree.status, cause=tree.cause)
        return None

    def _clear(self, root: int, spare: set[int]) -> bool:
        until = time.monotonic() + _BURST_SECONDS
        while proctree.kill_below(root, spare):
            if time.monotonic() > until:
                return False
        return proctree.is_bare(root, spare)

    def _later(self, tree: Tree) -> None:
        tree.again = time.monotonic() + tree.delay
        tree.delay = min(tree.delay * 1.5, 0.1)

    def _reap(self) -> None:
        """Takes the status of what ended: keepers that somebody killed, and what they left to us."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for tree in self.trees.values():
                if tree.keeper == pid:
                    tree.keeper = tree.leader = 0  # its leader may be reaped next, and its pid used again
                    self._doom(tree, "keeper")


def main() -> None:
    """`sys.argv`: descriptor of the socket, directory of the life."""
    for sig in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        signal.signal(sig, signal.SIG_IGN if sig in keeper.DEAF_TO else signal.SIG_DFL)  # whatever the worker ignored
    keeper.become_subreaper()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(False)
    gc.freeze()  # keepers are forked: what the collector doesn't touch stays shared
    Guardian(channel, sys.argv[2]).run()
