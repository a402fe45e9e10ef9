"""Build a relocated copy of Slurm from the packages of a Debian suite.

mmdebstrap installs the packages in a temporary root; `slurm_prefix.sh` copies Slurm out of it with all libraries, the C
library included. The result is a directory with `bin`, `lib` and `plugins` that works on any distribution, at the path
that it was built for.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.lab import requirements
from muster.lab.debian_mirror import debian_mirror
from muster.lab.errors import LabError, LabUnavailable

Report = Callable[[str], None]

_SCRIPT = Path(__file__).with_name("slurm_prefix.sh")
_INFO, _ERROR = "I: ", "E: "  # the prefixes of mmdebstrap's messages
_KEPT_LINES = 5


def build(suite: str, prefix: Path, report: Report) -> None:
    """Create `prefix` with the suite's Slurm; pass progress messages to `report`.

    Raise LabUnavailable if this machine lacks what the build needs, LabError if the build fails. A failed build leaves
    nothing.
    """
    requirements.check_root()
    program = shutil.which("mmdebstrap", path=requirements.SYSTEM_PATH)
    if program is None:
        raise LabUnavailable("another release of Slurm needs mmdebstrap: install it with `apt-get install mmdebstrap`")
    mirror = debian_mirror()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    # Not in /tmp, which may be small, or mounted without devices. The result is moved within one filesystem.
    with tempfile.TemporaryDirectory(prefix=f".{prefix.name}-", dir=prefix.parent) as directory:
        built = Path(directory, "prefix")
        _run([program, *_options(prefix, built), suite, "/dev/null", mirror], Path(directory), report)
        shutil.rmtree(prefix, ignore_errors=True)
        built.rename(prefix)


def _options(prefix: Path, built: Path) -> list[str]:
    """Return mmdebstrap's options for a root that is discarded after Slurm was moved out of it to `built`."""
    inside = shlex.join(["sh", "-eu", "-c", _SCRIPT.read_text(), "sh", str(prefix)])
    return [
        "--mode=root",
        "--variant=apt",
        "--format=null",
        "--include=slurm-wlm,patchelf",
        '--aptopt=APT::Install-Recommends "false"',
        # A mirror's copy of a moving suite may be some days old; signatures are checked nevertheless.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        f'--customize-hook=chroot "$1" {inside} && mv "$1/slurm-prefix" {shlex.quote(str(built))}',
    ]


def _run(argv: Sequence[str], directory: Path, report: Report) -> None:
    """Run mmdebstrap with its temporary files in `directory`."""
    environment = {**os.environ, "TMPDIR": str(directory), "LC_ALL": "C.UTF-8", "PATH": requirements.SYSTEM_PATH}
    lines: list[str] = []
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(_INFO) and "hook" not in line:
                    report(line.removeprefix(_INFO).strip())
                elif not line.startswith(_INFO):
                    lines = [*lines, line.rstrip()][-_KEPT_LINES:]
        except BaseException:
            process.terminate()  # it removes its root
            raise
    if process.returncode:
        errors = [line for line in lines if line.startswith(_ERROR)] or lines
        raise LabError(f"mmdebstrap failed, with the mirror {argv[-1]}; is it reachable?\n" + "\n".join(errors))
