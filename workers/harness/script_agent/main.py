"""Entry point: `main()` with the directory of the native state in `sys.argv[1]`, the workspace as current directory.

`BYRE_BRIDGE` in the environment is the unix socket of the tool bridge, if there is one.
"""

# No pathlib: it is slow to import.
# ruff: noqa: PTH118

from __future__ import annotations

import os
import sys

from workers.harness.script_agent.memory import FILE, Memory
from workers.harness.script_agent.player import Player
from workers.harness.script_agent.tools import Bridge
from workers.harness.script_agent.vocabulary import play_line
from workers.harness.script_agent.wire import Gone, Wire


def main() -> None:
    """Plays turns until stdin ends."""
    wire = Wire()
    memory = Memory(os.path.join(sys.argv[1], FILE))
    player = Player(wire, memory, Bridge(os.environ.get("BYRE_BRIDGE")), play_line)
    try:
        while True:
            player.play(wire.next_turn())
    except Gone:
        sys.exit(0)
