"""Running the real `muster` command in tests, and waiting for what it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from muster.rundir import RunPaths
from muster.runs.status import read_status

DEADLINE_S = 180.0  # for events that take seconds at most; a busy machine is no reason to fail
RAY_EXTRAS = Path(sys.prefix) / "ray-extras"  # what ray[default] has beyond ray: the dashboard's packages, py-spy
BEFORE_THE_DRIVER = ("pending", "gathering", "starting", "restarting")
Found = TypeVar("Found")


def wait_for(
    what: str,
    look: Callable[[], Found | None],
    deadline: float = DEADLINE_S,
    instead: Callable[[], object] | None = None,
) -> Found:
    """Look until there is something; when the deadline passes, fail and say what there is instead."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {deadline:g} s for {what}" + (f"; found {instead()}" if instead else ""))


@dataclass
class MusterCommand:
    """`muster ...` in this directory, with this environment on top; `cli` runs it, `python` runs what is on nodes."""

    cwd: Path
    python: str
    env: dict[str, str] = field(default_factory=dict)
    cli: str = sys.executable

    def start(self, *args: str, **popen: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.cli, "-m", "muster.cli.main", *args],
            **{
                "cwd": self.cwd,
                "env": {**os.environ, **self.env},
                "text": True,
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **popen,
            },
        )

    def __call__(self, *args: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def local(self, *args: str, nodes: int = 2, ray: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
        """A local run of this many nodes."""
        return self(*self.local_args(*args, nodes=nodes, ray=ray), **options)

    def local_args(self, *args: str, nodes: int = 2, ray: bool = False) -> list[str]:
        kind = ["--backend", "local", "--nodes", str(nodes), "--python", self.python]
        return ["run", *kind, *([] if ray else ["--no-ray"]), *args]

    # -- looking at runs --------------------------------------------------------------------------------------------

    def run_dirs(self) -> list[Path]:
        return sorted((self.cwd / "muster-runs").glob("*")) if (self.cwd / "muster-runs").is_dir() else []

    def run_dir(self) -> Path:
        """The only run's directory."""
        (only,) = self.run_dirs()
        return only

    def rank_output(self, rank: int, cycle: int = 0) -> Path:
        """The log of one process of the only run's gang; that of rank 0 is the driver's, of all cycles."""
        return Path(RunPaths(str(self.run_dir())).attempt(0).rank_output(rank, cycle))

    def status(self) -> dict[str, Any]:
        """Of the newest run, as `muster status --json` tells it; without starting a process each time."""
        return read_status(RunPaths(str(self.run_dirs()[-1])))

    def wait_for_driver(self, text: str) -> Path:
        """Wait until the only run's driver has written this; returns the run's directory."""

        def look() -> Path | None:
            for path in (self.cwd / "muster-runs").glob("*/attempt-*/logs/driver.log"):
                if text in path.read_text(errors="replace"):
                    return path.parent.parent.parent
            return None

        run = wait_for(f"{text!r} in the driver's output", look)
        wait_for("the status to follow", lambda: read_status(RunPaths(str(run)))["state"] not in BEFORE_THE_DRIVER)
        return run

    def agent_pid(self, rank: int) -> int:
        record = self.run_dir() / "attempt-0" / "nodes" / f"{rank:04d}.json"
        pid: int = wait_for(f"the record of rank {rank}", lambda: record.exists() and json.loads(record.read_text()))[
            "pid"
        ]
        return pid
