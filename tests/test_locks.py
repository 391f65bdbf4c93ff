"""Everything of the program imports with what its own lock installs: what only the tests' lock brings would fail a newcomer, not a test."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

from tests.support.dev import ROOT

IMPORTS = """
import importlib, pkgutil, sys
hidden = set(sys.argv[1:])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"{name} isn't in the lock", name=name)

sys.meta_path.insert(0, Absent())
for root in ("app", "workers"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.endswith("gunicorn_conf"):  # gunicorn runs it as a file, with the environment of a server
            importlib.import_module(module.name)
print(len(sys.modules))
"""


def test_what_is_imported_is_locked() -> None:
    locked = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.txt").read_text(), re.M)}
    owners = {
        name: {re.sub(r"[._]+", "-", owner).lower() for owner in names} for name, names in packages_distributions().items()
    }
    hidden = [name for name, names in owners.items() if not names & (locked | {"byre"})]
    assert {"pytest", "schemathesis"} <= set(hidden)
    done = subprocess.run([sys.executable, "-c", IMPORTS, *hidden], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500
