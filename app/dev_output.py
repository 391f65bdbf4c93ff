"""What `byre dev` shows: the lines of its children, each behind the name of who wrote it.

Rules: with JSON logs every line is one JSON object and nothing stands before it, so that another program can read the lot.
A reader that went away (`byre dev | head`) doesn't stop the children.
"""

from __future__ import annotations

import json
from typing import TextIO

WIDTH = 9
_COLOURS = {"byre": "36", "redis": "31", "api": "32"}
_OTHER = "35"


class Output:
    """Writes to `stream`; in colour if that is a terminal and `form` isn't "json"."""

    def __init__(self, stream: TextIO, form: str) -> None:
        self._stream = stream
        self._json = form == "json"
        self._colour = not self._json and stream.isatty()
        self._gone = False

    def line(self, who: str, text: str) -> None:
        """One line of a child."""
        if self._json:
            self._write(text if text.startswith("{") else json.dumps({"process": who, "event": text}))
            return
        name = f"{who:<{WIDTH}}|"
        if self._colour:
            name = f"\x1b[{_COLOURS.get(who, _OTHER)}m{name}\x1b[0m"
        self._write(f"{name} {text}")

    def say(self, text: str) -> None:
        """One line of `byre dev` itself."""
        self.line("byre", text)

    def plain(self, text: str) -> None:
        """Text for a person, as it is; left out where another program reads."""
        if not self._json:
            self._write(text)

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (BrokenPipeError, OSError):
            self._gone = True
