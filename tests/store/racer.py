"""A process that races for keys of a directory store; started by the tests, it is not one.

`race ROOT NAME ROUNDS ETAG`: says that it is ready, waits for a line, and in each round creates `create/{round}` and replaces
`cas/{round}` of that etag; prints, as JSON, which it won.
`count ROOT TIMES`: adds 1 to the number in `counter`, TIMES times, by compare-and-swap.
`write ROOT`: for ever replaces `torn` by bodies that say of what they consist, and creates `made/{n}` likewise; prints each answer.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from app.store.contract import PreconditionFailed
from app.store.directory import DirectoryStore

BODY_WORDS = 20_000


def whole(number: int) -> bytes:
    """A body of 160,000 bytes that shows whether it is whole."""
    return b"%07d " % number * BODY_WORDS


def race(store: DirectoryStore, name: str, rounds: int, etag: str) -> None:
    won: dict[str, list[int]] = {"create": [], "cas": []}
    print("ready", flush=True)
    sys.stdin.readline()
    for round_ in range(rounds):
        with suppress(PreconditionFailed):
            store.put(f"create/{round_}", name.encode(), if_none_match=True)
            won["create"].append(round_)
        with suppress(PreconditionFailed):
            store.put(f"cas/{round_}", name.encode(), if_match=etag)
            won["cas"].append(round_)
    print(json.dumps(won))


def count(store: DirectoryStore, times: int) -> None:
    for _ in range(times):
        while True:
            got = store.get("counter")
            try:
                store.put("counter", b"%d" % (int(got.body) + 1), if_match=got.etag)
                break
            except PreconditionFailed:
                continue


def write(store: DirectoryStore) -> None:
    number = len(store.list("made/"))
    while True:
        number += 1
        store.put("torn", whole(number))
        store.put(f"made/{number:07d}", whole(number), if_none_match=True, put_id=f"id-{number}")
        print(number, flush=True)


if __name__ == "__main__":
    what, root, *rest = sys.argv[1:]
    directory = DirectoryStore(Path(root))
    if what == "race":
        race(directory, rest[0], int(rest[1]), rest[2])
    elif what == "count":
        count(directory, int(rest[0]))
    else:
        write(directory)
