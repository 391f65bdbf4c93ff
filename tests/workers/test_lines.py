"""Lines from a pipe stay bounded and exact, whatever is written and however it is cut. Row D2."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.harness.base import ProtocolError
from workers.harness.lines import LIMIT, Item, LineReader, Lost


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


def everything(reader: LineReader) -> list[Item]:
    found: list[Item] = []
    while True:
        try:
            found += reader.read(10)
        except EOFError:
            return found


def feed(fd: int, pieces: list[bytes]) -> threading.Thread:
    def run() -> None:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(fd, left) :]
        os.close(fd)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def shown(items: list[Item]) -> list[bytes | str]:
    return [item if isinstance(item, bytes) else item.reason for item in items]


def test_lines_are_the_same_however_they_are_cut(pipe: tuple[int, int]) -> None:
    rng = random.Random(5)
    lines = [bytes(rng.randrange(1, 256) for _ in range(rng.choice((0, 1, 5, 300)))).replace(b"\n", b"?") for _ in range(500)]
    data = b"\n".join(lines)
    pieces, at = [], 0
    while at < len(data):
        size = rng.choice((1, 2, 3, 100, 5000))
        pieces.append(data[at : at + size])
        at += size
    writer = feed(pipe[1], pieces)
    assert everything(LineReader(pipe[0])) == [line for line in lines if line.strip()]
    writer.join()


@pytest.mark.parametrize(
    ("data", "limit", "expected"),
    [
        (b"", 10, []),
        (b"\n \n\r\n", 10, []),
        (b"half", 10, [b"half"]),
        (b"a\n1234567890\nb\n", 10, [b"a", b"1234567890", b"b"]),
        (b"a\n12345678901\nb\n", 10, [b"a", "line over 10 bytes", b"b"]),
        (b"x" * 95 + b"\nb", 10, ["line over 10 bytes", b"b"]),
        (b"x" * 95, 10, ["line over 10 bytes"]),
        (b"\xff\xfe\n\xc3(\n", 10, [b"\xff\xfe", b"\xc3("]),
        (b"y" * (300 * 1024) + b"\nb\n", LIMIT, [b"y" * (300 * 1024), b"b"]),
        (b"y" * LIMIT + b"\n" + b"y" * (LIMIT + 1) + b"\nb\n", LIMIT, [b"y" * LIMIT, f"line over {LIMIT} bytes", b"b"]),
    ],
)
def test_limits(pipe: tuple[int, int], data: bytes, limit: int, expected: list[bytes | str]) -> None:
    writer = feed(pipe[1], [data])
    assert shown(everything(LineReader(pipe[0], limit))) == expected
    writer.join()


def test_a_line_over_the_limit_keeps_its_beginning(pipe: tuple[int, int]) -> None:
    writer = feed(pipe[1], [b"begin" + b"z" * (2 * LIMIT) + b"\n"])
    (error,) = everything(LineReader(pipe[0]))
    assert isinstance(error, ProtocolError) and error.raw == (b"begin" + b"z" * 4096)[:4096]
    writer.join()


def test_an_endless_line_is_reported_before_it_ends_and_read_returns_in_time() -> None:
    fd = os.open("/dev/zero", os.O_RDONLY)  # never a pause
    reader = LineReader(fd)
    guard = threading.Timer(10, reader.stop)
    guard.start()
    found: list[Item] = []
    while not found:
        found = reader.read(5)
    assert shown(found) == [f"line over {LIMIT} bytes"]
    before = time.monotonic()
    assert reader.read(0.05) == []
    assert time.monotonic() - before < 1.0
    guard.cancel()
    os.close(fd)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "command",
    [
        "head -c 1G /dev/zero",
        "yes $(head -c 1000 /dev/zero | tr '\\0' y) | head -c 1G",
        "head -c 1G /dev/zero | tr '\\0' x | fold -w 300000",
    ],
)
def test_a_flood_of_a_gigabyte_takes_no_memory(pipe: tuple[int, int], command: str) -> None:
    flood = subprocess.Popen(["sh", "-c", command], stdout=pipe[1])
    os.close(pipe[1])
    reader = LineReader(pipe[0])
    start = most = resident()
    total = reads = 0
    try:
        while True:
            lines = reader.read(10)
            assert lines
            total += sum(len(line) for line in lines if isinstance(line, bytes))
            reads += 1
            if reads % 64 == 0:
                most = max(most, resident())
    except EOFError:
        pass
    assert flood.wait() == 0
    assert most - start < 24 * LIMIT
    assert total > (1 << 28) or (command.startswith("head -c 1G /dev/zero") and "fold" not in command)


def test_nothing_is_read_ahead(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    reader = LineReader(pipe[0])
    written = 0
    try:
        while True:
            written += os.write(pipe[1], b"0123456789abcde\n" * 64)
    except BlockingIOError:
        pass
    assert sum(len(line) for line in reader.read(1) if isinstance(line, bytes)) <= 1 << 16
    assert written <= 1 << 20  # the pipe was full: the writer waits for the reader


def test_stop_ends_a_waiting_read(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0])
    ended = threading.Event()

    def run() -> None:
        with pytest.raises(EOFError):
            reader.read(None)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    reader.stop()
    assert ended.wait(5)
    thread.join()
    os.write(pipe[1], b"late\n")
    with pytest.raises(EOFError):
        reader.read(0)
    reader.close()


def test_timeout_without_a_whole_line(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0])
    os.write(pipe[1], b"ha")
    assert reader.read(0.02) == []
    os.write(pipe[1], b"lf\n")
    assert reader.read(1) == [b"half"]


def test_both_ends_of_a_long_line_for_who_asks(pipe: tuple[int, int]) -> None:
    writer = feed(pipe[1], [b"a\nbegin" + b"z" * (3 * LIMIT) + b"end\nb\n", b"short end" * 3, b"\n", b"x" * 200_000, b"y"])
    found = everything(LineReader(pipe[0], LIMIT, ends=True))
    assert shown(found[:1]) == [b"a"] and isinstance(found[1], ProtocolError)
    assert found[2] == Lost(b"begin" + b"z" * 4091, b"z" * 4093 + b"end", 3 * LIMIT + 8)
    assert found[3:] == [b"b", b"short end" * 3, b"x" * 200_000 + b"y"]
    writer.join()


def test_both_ends_of_a_long_line_that_never_ends(pipe: tuple[int, int]) -> None:
    writer = feed(pipe[1], [b"0123456789abcdef"])
    assert everything(LineReader(pipe[0], 10, ends=True))[1:] == [Lost(b"0123456789abcdef", b"0123456789abcdef", 16)]
    writer.join()
