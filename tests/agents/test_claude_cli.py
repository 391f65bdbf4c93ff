"""The adapter and the real CLI by themselves: an image, another model for the next turn, the memory of a former process."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.messages_api import MessagesApi
from tests.support.npm_agents import required
from workers.harness.base import ENDS, Done, Image, Input, Message, Output, Place, ProtocolError, Send, Turn
from workers.harness.claude import ClaudeAdapter
from workers.harness.claude_command import ClaudeOptions

SECONDS = 60.0


def png(width: int = 2, height: int = 2) -> bytes:
    """A red picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Cli:
    """One process with its adapter."""

    def __init__(self, adapter: ClaudeAdapter, process: subprocess.Popen[bytes]) -> None:
        self.adapter, self.process = adapter, process

    def turn(self, turn: Turn) -> list[Output]:
        """What it says in a turn, to its end."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(self.adapter.start_turn(turn))
        self.process.stdin.flush()
        said: list[Output] = []
        for line in self.process.stdout:
            for output in self.adapter.decode(line):
                if isinstance(output, Send):
                    self.process.stdin.write(output.data)
                    self.process.stdin.flush()
                said.append(output)
            if said and isinstance(said[-1], ENDS):
                return said
        raise AssertionError(f"it ended: {said}")


@contextmanager
def running(place: Place, options: ClaudeOptions) -> Iterator[Cli]:
    adapter = ClaudeAdapter(options)
    with subprocess.Popen(
        adapter.command(place), cwd=place.cwd, env=adapter.environment(place), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        try:
            yield Cli(adapter, process)
        finally:
            limit.cancel()
            process.kill()


def messages(outputs: list[Output]) -> list[str]:
    assert isinstance(outputs[-1], Done), outputs[-1]
    return [output.text for output in outputs if isinstance(output, Message)]


def test_an_image_another_model_and_another_process(api: MessagesApi, tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "work"
    home.mkdir(), cwd.mkdir()
    options = ClaudeOptions(command=(required("claude"),), variables={"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "k"})
    place = Place(home=home, cwd=cwd, session_id="01a22ed6270e7f2d9c11e968b23285bc", model="claude-opus-4-8")
    picture = png()
    with running(place, options) as cli:
        first = cli.turn(Turn("1" * 32, (Input("a", "@images", (Image("image/png", picture),)),), model="claude-opus-4-8"))
        assert messages(first) == [f"image/png {len(picture)}"]
        assert messages(cli.turn(Turn("2" * 32, (Input("b", "@model"),), model="claude-sonnet-5"))) == ["claude-sonnet-5"]
        assert messages(cli.turn(Turn("3" * 32, (Input("c", "@model"),), model="claude-opus-4-8"))) == ["claude-opus-4-8"]
    with running(dataclasses.replace(place, fresh=False), options) as cli:
        with pytest.raises(ProtocolError):
            cli.adapter.decode(b"{half")
        said = messages(cli.turn(Turn("4" * 32, (Input("d", "@recall"),), model="claude-opus-4-8")))
        assert [line.removesuffix("\\n") for line in said[0].splitlines()] == ["@images", "@model", "@model", "@recall"]
