"""A script agent under a guardian, as a worker runs it: turns in, outputs out."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from workers.harness.base import ENDS, Input, Output, Place, ProtocolError, Turn
from workers.harness.lines import LineReader
from workers.harness.script import ScriptAdapter
from workers.process import Child, Guardian, Limits

Heard = Output | ProtocolError
_numbers = itertools.count(1)


class Agent:
    """`home` and `cwd` are made; the process starts at once."""

    def __init__(self, guardian: Guardian, root: Path, *, bridge: Path | None = None, limits: Limits | None = None) -> None:
        self.place = Place(root / "home", root / "work", "session", bridge)
        for directory in (self.place.home, self.place.cwd):
            directory.mkdir(parents=True, exist_ok=True)
        self.limits = limits
        self.guardian, self.adapter = guardian, ScriptAdapter(os.environ["PATH"])
        self.start()

    def start(self) -> None:
        command, env = self.adapter.command(self.place), self.adapter.environment(self.place)
        self.child: Child = self.guardian.spawn(command, env=env, cwd=self.place.cwd, limits=self.limits)
        self.reader = LineReader(self.child.stdout.fileno())
        self._heard: list[Heard] = []

    def restart(self) -> None:
        """Kills it and goes on from the native state."""
        self.child.kill()
        self.reader.close()
        self.child.close()
        self.start()

    def begin(self, text: str = "", **more: object) -> Turn:
        """Starts a turn with one message; `more` is the rest of Turn, `input_id` or `inputs`."""
        number = next(_numbers)
        more.setdefault("inputs", (Input(str(more.pop("input_id", f"input{number}")), text),))
        turn = Turn(turn_id=f"turn{number}", **more)  # type: ignore[arg-type]
        self.child.send(self.adapter.start_turn(turn))
        return turn

    def next(self, seconds: float = 10.0) -> Heard:
        """The next output. Raises EOFError when the agent ended, AssertionError when nothing comes."""
        while not self._heard:
            lines = self.reader.read(seconds)
            assert lines, f"nothing for {seconds} s"
            for line in lines:
                try:
                    if isinstance(line, ProtocolError):
                        raise line
                    self._heard += self.adapter.decode(line)
                except ProtocolError as error:
                    self._heard.append(error)
        return self._heard.pop(0)

    def until(self, kind: type) -> list[Heard]:
        """What comes up to and with the first output of `kind`."""
        heard = [self.next()]
        while not isinstance(heard[-1], kind):
            heard.append(self.next())
        return heard

    def rest(self) -> list[Heard]:
        """What comes up to and with the end of the turn."""
        heard = [self.next()]
        while not isinstance(heard[-1], ENDS):
            heard.append(self.next())
        return heard

    def turn(self, text: str = "", **more: object) -> list[Heard]:
        """A whole turn; the last output is its end."""
        self.begin(text, **more)
        return self.rest()
