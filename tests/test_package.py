"""What is installed is whole: a wheel has everything that the checkout has, and runs from it alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

from tests.support.dev import ROOT, running

PARTS = ("app", "workers", "schemas")


def wheel(folder: Path) -> Path:
    """The wheel of this checkout, built from a copy of what it needs."""
    source, out = folder / "source", folder / "out"
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
        "-w",
        str(out),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    [built] = out.glob("*.whl")
    return built


def test_a_wheel_has_every_file_and_runs(tmp_path: Path) -> None:
    unpacked = tmp_path / "installed"
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        names = set(archive.namelist())
        archive.extractall(unpacked)
    files = (path for part in PARTS for path in (ROOT / part).rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert wanted - names == set()
    with running(env={"PYTHONPATH": str(unpacked)}) as stack:
        for pid in (stack.info["api_pid"], *stack.info["worker_pids"]):
            assert f"PYTHONPATH={unpacked}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        for path in ("/docs", "/openapi/brain.json", "/openapi/byre.json"):
            with urllib.request.urlopen(stack.info["url"] + path, timeout=30) as answer:
                assert answer.status == 200
        events = stack.turn(stack.session(), "/say from a wheel")
        assert [event["type"] for event in events] == ["turn.started", "assistant.message", "turn.completed"]
