"""A process that gevent has patched, whose greenlets and threads count in a directory store; started by the tests.

Prints, as JSON, how often other greenlets had a turn while one waited for a lock that another holder has.
"""

from gevent import monkey

monkey.patch_all()

import fcntl  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402

from app.store import directory  # noqa: E402
from app.store.contract import PreconditionFailed, StoreError  # noqa: E402
from app.store.directory import META, DirectoryStore  # noqa: E402


def count(store: DirectoryStore, times: int) -> None:
    for _ in range(times):
        while True:
            got = store.get("counter")
            gevent.sleep(0)
            try:
                store.put("counter", b"%d" % (int(got.body) + 1), if_match=got.etag)
                break
            except PreconditionFailed:
                continue


def turns_while_waiting(root: Path) -> int:
    """How often this greenlet has a turn while another one waits for a lock."""
    directory.LOCKS, directory.LOCK_SECONDS = 1, 0.3
    store = DirectoryStore(root)
    handle = os.open(root / META / "locks" / "0000", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    waiting = gevent.spawn(store.put, "held", b"1")
    turns = 0
    while not waiting.ready():
        gevent.sleep(0.001)
        turns += 1
    os.close(handle)
    assert isinstance(waiting.exception, StoreError)
    return turns


def main() -> None:
    root = Path(sys.argv[1])
    store = DirectoryStore(root)
    hub = gevent.get_hub()
    workers = [gevent.spawn(count, store, 10) for _ in range(8)]
    workers += [hub.threadpool.spawn(count, store, 10) for _ in range(4)]
    for worker in workers:
        worker.get()
    print(json.dumps({"turns_of_others_while_waiting": turns_while_waiting(root)}))


if __name__ == "__main__":
    main()
