"""Opens a session, sends a message, and prints its events, one JSON line each, until the turn has ended.

BRAIN_TOKEN=... python session.py http://127.0.0.1:8080 script '/stream 5 200 hello'
"""

from __future__ import annotations

import json
import os
import sys

from brain import Brain

ENDS = ("turn.completed", "turn.failed", "turn.interrupted")


def main() -> None:
    url, harness, text = sys.argv[1:]
    brain = Brain(url, os.environ["BRAIN_TOKEN"])
    session = brain.open(harness, "default")
    said = brain.say(session, text)
    for event in brain.follow(session, said["cursor"]):
        print(json.dumps(event), flush=True)
        if event["type"] in ENDS and event.get("input_id") == said["id"]:
            return


if __name__ == "__main__":
    main()
