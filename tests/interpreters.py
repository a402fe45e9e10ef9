"""Other interpreters than the tests' own: those of this machine, and those that `.ci/interpreters` has unpacked."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")  # that nodes may have
UNPACKED = Path(__file__).parents[1] / ".venv" / "interpreters"
PYENV = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"  # before tests get a private home


@functools.cache
def interpreter(version: str) -> str | None:
    """Return the program of this version; None if there is none that works."""
    candidates = [
        UNPACKED / f"python{version}" / "usr" / "bin" / f"python{version}",
        *sorted(PYENV.glob(f"{version}.*/bin/python{version}")),
        *([Path(found)] if (found := shutil.which(f"python{version}")) else []),
    ]
    return next((str(path) for path in candidates if path.exists() and _reports(path) == version), None)


def _reports(program: Path) -> str:
    """Return the version that the program reports, "" for one that does not work, such as a shim without a version."""
    done = subprocess.run([str(program), "-S", "-V"], capture_output=True, text=True)
    found = re.match(r"Python (\d+\.\d+)\.", done.stdout)
    return found[1] if found and done.returncode == 0 else ""
