"""The library of a run as a file, and a Python that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.launch.driver_library import build_library
from muster.rundir.paths import LIBRARY


@pytest.fixture(scope="module")
def contents() -> bytes:
    return build_library(sys.executable)


@pytest.fixture
def archive(contents: bytes, tmp_path: Path) -> Path:
    (tmp_path / LIBRARY).write_bytes(contents)
    return tmp_path / LIBRARY


def python(program: str, *path: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """In an environment that has nothing but this path."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd="/", env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 or not check, done.stderr
    return done
