"""The lines that a message can have, each a function; the table at the end is the whole vocabulary (docs/harness-script.md).

Rules: a function gets the player and what follows the word and the blank. It answers False, having done nothing, if that isn't
its grammar; the line is then said back like any other text.
"""

from __future__ import annotations

import json
import os
import signal
import time

from workers.harness.script_agent import tools
from workers.harness.script_agent.player import Fail, Parked, Player
from workers.harness.script_agent.wire import BATCH, encoded, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST = 10_000_000  # messages or deltas of one line
LONGEST = 16 << 20  # bytes of one message of /emit: beyond the worker's limit of a line, so that it can be tested


def play_line(player: Player, line: str) -> None:
    """Plays one line. Raises Fail, Parked, Interrupted, Gone, OSError."""
    word, _, rest = line.partition(" ")
    command = VOCABULARY.get(word)
    if command is None or not command(player, rest):
        player.say(f"You said: {line}")


def _say(player: Player, rest: str) -> bool:
    if rest:
        player.say(rest)
    return bool(rest)


def _stream(player: Player, rest: str) -> bool:
    """/stream N MS TEXT: the same number of characters in each delta, as far as they go; empty ones are sent too."""
    numbers, text = _numbers(rest, 2)
    if not numbers or not text or not 1 <= numbers[0] <= MOST:
        return False
    count, size = int(numbers[0]), len(text)
    pieces = (text[size * at // count : size * (at + 1) // count] for at in range(count))
    _paced(player, (f'{{"type":"delta","text":{quoted(piece)}}}\n' for piece in pieces), numbers[1] / 1000)
    player.say(text)
    return True


def _emit(player: Player, rest: str) -> bool:
    """/emit N BYTES RATE: numbered from 1, filled up to BYTES with x."""
    numbers, more = _numbers(rest, 3)
    if not numbers or more or not (1 <= numbers[0] <= MOST and 0 <= numbers[1] <= LONGEST):
        return False
    count, size, rate = int(numbers[0]), int(numbers[1]), numbers[2]
    fill = "x" * size
    texts = (f"{at} {fill}"[: max(size, len(str(at)))] for at in range(1, count + 1))
    _paced(player, (f'{{"type":"message","text":"{text}"}}\n' for text in texts), 1 / rate if rate else 0.0)
    player.remember_answer(f"{count} numbered messages of {size} bytes", count)
    return True


def _paced(player: Player, lines: Iterable[str], apart: float) -> None:
    """Writes `lines`, `apart` seconds from one to the next on the whole; those that are due together in one write."""
    start, fill = time.monotonic(), 0
    batch: list[str] = []
    for at, line in enumerate(lines):
        early = apart and start + at * apart - time.monotonic()
        if fill and (fill >= BATCH or early > 0):
            player.wire.write(encoded("".join(batch)))
            batch, fill = [], 0
            player.wire.check()
        if early > 0:
            player.wire.wait(early)
        batch.append(line)
        fill += len(line)
    player.wire.write(encoded("".join(batch)))


def _write(player: Player, rest: str) -> bool:
    path, blank, text = rest.partition(" ")
    if not path or not blank:
        return False
    text = text.replace("\\n", "\n")
    player.own_tool("write_file", {"path": path, "text": text}, lambda: tools.write_file(player.root, path, text))
    return True


def _run(player: Player, rest: str) -> bool:
    if rest.strip():
        player.shell(rest, ["/bin/sh", "-c", rest], dict(os.environ))
    return bool(rest.strip())


def _tool(player: Player, rest: str) -> bool:
    name, _, arguments = rest.partition(" ")
    parsed = _object(arguments or "{}")
    if name and parsed is not None:
        player.bridged_tool(name, parsed)
    return bool(name) and parsed is not None


def _ask(player: Player, rest: str) -> bool:
    parsed = _object(rest)
    if parsed is not None:
        player.bridged_tool("ask_human", parsed)
    return parsed is not None


def _title(player: Player, rest: str) -> bool:
    if rest.strip():
        player.bridged_tool("set_merge_title", {"title": rest})
    return bool(rest.strip())


def _sleep(player: Player, rest: str) -> bool:
    numbers, more = _numbers(rest, 1)
    if not numbers or more:
        return False
    player.wire.wait(numbers[0])
    return True


def _garbage(player: Player, rest: str) -> bool:
    """Four lines that are no outputs: cut short, of an unknown type, 300 KiB of nothing, invalid UTF-8."""
    if rest:
        return False
    player.wire.write(b'{"type":"message","text":\n')
    player.wire.send("gibberish", text="no such type")
    player.wire.write(b"x" * (300 * 1024) + b"\n")
    player.wire.write(b'{"type":"message","text":"\xff\xfe\xc3("}\n')
    return True


def _ratelimit(player: Player, rest: str) -> bool:
    numbers, more = _numbers(rest, 1)
    if not numbers or more:
        return False
    if player.input_id not in player.memory.parked:
        raise Parked(numbers[0])
    return True


def _onconflict(player: Player, rest: str) -> bool:
    if rest not in ("ours", "leave"):
        return False
    player.memory.note(on_conflict=rest)
    return True


def _fail(player: Player, rest: str) -> bool:
    raise Fail("script_failed", rest or "told to fail")


def _crash(player: Player, rest: str) -> bool:
    if not rest:
        os._exit(3)
    return False


def _hang(player: Player, rest: str) -> bool:
    if rest:
        return False
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(sig, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _orphan(player: Player, rest: str) -> bool:
    numbers, more = _numbers(rest, 1)
    if not numbers or more:
        return False
    player.say(f"Started process {tools.start_orphan(numbers[0])}")
    return True


def _recall(player: Player, rest: str) -> bool:
    """Line ends within a message are shown as \\n, so that each message is one line."""
    if rest:
        return False
    player.say("\n".join(text.replace("\r", "").replace("\n", "\\n") for _, text in player.memory.users))
    return True


def _numbers(rest: str, count: int) -> tuple[list[float], str]:
    """The first `count` words as numbers of at least 0, and what follows; ([], "") if they aren't that."""
    words = rest.split(" ", count)
    try:
        numbers = [float(word) for word in words[:count]]
    except ValueError:
        return [], ""
    if len(numbers) < count or not all(0 <= number < 1e9 for number in numbers):
        return [], ""
    return numbers, words[count] if len(words) > count else ""


def _object(text: str) -> object | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


VOCABULARY: dict[str, Callable[[Player, str], bool]] = {
    "/say": _say,
    "/stream": _stream,
    "/emit": _emit,
    "/write": _write,
    "/run": _run,
    "/tool": _tool,
    "/ask": _ask,
    "/title": _title,
    "/sleep": _sleep,
    "/garbage": _garbage,
    "/ratelimit": _ratelimit,
    "/onconflict": _onconflict,
    "/fail": _fail,
    "/crash": _crash,
    "/hang": _hang,
    "/orphan": _orphan,
    "/recall": _recall,
}
