"""Apptainer for tests: this machine's own, or the one that `.ci/apptainer` has unpacked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

UNPACKED = Path(__file__).parents[1] / ".venv" / "apptainer" / "usr" / "bin"
# A user namespace for root, too: without one, Apptainer wants every capability, and root of a container lacks some.
ARGUMENTS = "--userns"


def search_path() -> str | None:
    """Return a PATH with Apptainer; None if there is none."""
    path = f"{os.environ['PATH']}{os.pathsep}{UNPACKED}"
    return path if shutil.which("apptainer", path=path) else None
