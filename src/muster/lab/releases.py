"""Provide a release of Slurm for a lab: the installed one, or one that is built from a Debian suite and cached."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.lab import release_build, requirements
from muster.lab.errors import LabError
from muster.lab.release_build import Report

#: The Debian suites that have a release. sid moves on; `provide` checks what it got.
SUITES = {"24.11": "trixie", "26.05": "sid"}
#: Not in root's home directory, which jobs of other users cannot read.
DEFAULT_CACHE = Path("/var/cache/muster/slurm")
INSTALLED = "installed"
CACHE_VARIABLE = "MUSTER_SLURM_DIR"


def provide(release: str, report: Report) -> Path | None:
    """Return the prefix of a release such as `24.11`, built at first use; None if it is the installed Slurm.

    `report` gets the progress of a build.
    """
    if release == INSTALLED:
        return None
    installed = version_of(None)
    if installed and _release(installed) == release:
        return None
    if release not in SUITES:
        known = ", ".join([*([f"{_release(installed)} (installed)"] if installed else []), *SUITES])
        raise LabError(f"Slurm {release} is not available; choose one of {known}")
    prefix = _cache() / release
    if version_of(prefix) is None:
        _build(release, prefix, report)
    found = version_of(prefix)
    if found is None or _release(found) != release:
        raise LabError(
            f"Debian {SUITES[release]} has Slurm {found or 'that does not start'}, not {release}; it is in {prefix}"
        )
    return prefix


def version_of(prefix: Path | None) -> str | None:
    """Return the version of Slurm (such as `24.11.5`) in a prefix, or of the installed one; None if there is none."""
    path = f"{prefix}/bin" if prefix else requirements.SYSTEM_PATH
    try:
        done = subprocess.run(
            ["slurmctld", "-V"], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    match = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
    return match[0] if match else None


def _build(release: str, prefix: Path, report: Report) -> None:
    requirements.check_root()
    with _building(prefix):
        if version_of(prefix) is None:  # no other process has built it meanwhile
            report(f"building Slurm {release} from Debian {SUITES[release]}, once; this takes one to five minutes")
            release_build.build(SUITES[release], prefix, report)


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cache() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE)


@contextmanager
def _building(prefix: Path) -> Iterator[None]:
    """Let one process build a prefix at a time."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with prefix.with_name(f"{prefix.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
