"""A Python environment that has Ray and what Ray needs, and not Muster: as a user's own may be."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def ray_alone(directory: Path) -> str:
    """Make one; returns its interpreter. Packages are links into this environment: nothing is downloaded."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=100)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in _needed("ray", set()):
        package = distribution(name)
        for entry in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            link = site / entry
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(entry))))
    return str(directory / "bin" / "python")


def _needed(name: str, known: set[str]) -> set[str]:
    """It, and what it cannot do without."""
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:  # of another platform or version of Python
        return known
    known.add(name)
    for line in requires:
        match = re.match(r"[\w.-]+", line)
        if match and "extra ==" not in line and match[0] not in known:
            _needed(match[0], known)
    return known
