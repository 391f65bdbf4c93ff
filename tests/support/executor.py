"""An executor in a process of its own: `python -m tests.support.executor URL MANAGEMENT_TOKEN`, with a tool `calc_add` that adds.

It registers, prints its id as a line of its own when it is connected, and answers calls until it is killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

TOOL = {
    "name": "add",
    "description": "adds two numbers",
    "input_schema": {
        "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"],
    },
}  # fmt: skip


@contextlib.contextmanager
def executor(info: dict[str, Any]) -> Iterator[str]:
    """A running executor of the API that `info` (a ready file) names; gives its id."""
    argv = [sys.executable, "-m", "tests.support.executor", info["url"], info["management_token"]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _post(url: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30) as answer:
        return dict(json.load(answer))


def main() -> None:
    url, token = sys.argv[1:]
    made = _post(f"{url}/executors", token, {"binding": "calc", "tools": [TOOL]})
    base = f"{url}/executors/{made['id']}"
    headers = {"Authorization": f"Bearer {made['token']}", "Accept": "text/event-stream"}
    with urllib.request.urlopen(urllib.request.Request(f"{base}/commands", headers=headers), timeout=300) as stream:
        for line in stream:
            if not line.startswith(b"data:"):
                continue
            command = json.loads(line[5:])
            if command["type"] == "ready":
                print(made["id"], flush=True)
            if command["type"] == "call":
                at = {"connection": command["connection"], "call_id": command["call_id"]}
                total = command["arguments"]["a"] + command["arguments"]["b"]
                _post(f"{base}/responses", made["token"], {**at, "progress": {"message": "adding"}})
                _post(
                    f"{base}/responses", made["token"], {**at, "result": {"content": [{"type": "text", "text": f"{total:g}"}]}}
                )


if __name__ == "__main__":
    main()
