"""A process that gevent has patched, whose greenlets and threads count in a directory store; started by the tests.

Prints, as JSON, how often other greenlets had a turn while one waited for a lock that another holder has, and while one
waited for the disk.
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
from app.store.contract import PreconditionFailed, Store, StoreError  # noqa: E402
from app.store.directory import META, DirectoryStore  # noqa: E402
from app.store.open import open_store  # noqa: E402

original_sleep = monkey.get_original("time", "sleep")


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


def error_of(store: Store, key: str, **condition: bool) -> Exception | None:
    """What a put raises."""
    try:
        store.put(key, b"1", **condition)  # type: ignore[arg-type]
    except (StoreError, PreconditionFailed) as error:
        return error
    return None


def turns_while_waiting(root: Path) -> int:
    """How often this greenlet has a turn while another one waits for a lock."""
    directory.LOCKS, directory.LOCK_SECONDS = 1, 0.3
    store = DirectoryStore(root)
    handle = os.open(root / META / "locks" / "0000", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    waiting = gevent.spawn(error_of, store, "held")
    turns = 0
    while not waiting.ready():
        gevent.sleep(0.001)
        turns += 1
    os.close(handle)
    assert isinstance(waiting.get(), StoreError)
    return turns


def slow_flush(_: int) -> None:
    original_sleep(0.15)


def turns_while_flushing(root: Path) -> int:
    """How often this greenlet has a turn while another one's write takes 0.3 s in the kernel."""
    store = open_store(str(root))
    store.put("slow", b"1")
    real = os.fsync
    os.fsync = slow_flush  # type: ignore[assignment]
    writing = gevent.spawn(store.put, "slow", b"2")
    turns = 0
    while not writing.ready():
        gevent.sleep(0.001)
        turns += 1
    os.fsync = real
    assert store.get("slow").etag == writing.get()
    assert isinstance(error_of(store, "slow", if_none_match=True), PreconditionFailed)
    store.close()
    return turns


def main() -> None:
    root = Path(sys.argv[1])
    store = DirectoryStore(root)
    hub = gevent.get_hub()
    workers = [gevent.spawn(count, store, 10) for _ in range(8)]
    workers += [hub.threadpool.spawn(count, store, 10) for _ in range(4)]
    for worker in workers:
        worker.get()
    print(json.dumps({"while_waiting": turns_while_waiting(root), "while_flushing": turns_while_flushing(root)}))


if __name__ == "__main__":
    main()
