"""A served document turned against the server that serves it, by schemathesis in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
SECONDS = 300


def fuzz(url: str, token: str, endless: Iterable[str], examples: int, folder: Path) -> None:
    """Asks all operations of the document at `url` but the `endless` ones; fails with what was found. Files go to `folder`."""
    argv = [sys.executable, "-m", "schemathesis.cli", "run", url]
    argv += ["-H", f"Authorization: Bearer {token}", "--checks", ",".join(CHECKS)]
    argv += ["--phases", "examples,coverage,fuzzing,stateful", "--mode", "all", "--max-examples", str(examples), "--seed", "1"]
    # more threads than one run into a fault of Python 3.11's ast module
    argv += ["--request-timeout", "30", "--workers", "1", "--warnings", "off", "--no-color"]
    argv += [part for name in endless for part in ("--exclude-operation-id", name)]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    shown = "\n".join(line[:300] for line in done.stdout.splitlines())
    assert done.returncode == 0, shown[-8000:] + done.stderr[-2000:]
