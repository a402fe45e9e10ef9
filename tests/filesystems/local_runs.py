"""Local runs on a filesystem with faults, and what must be true of each."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.filesystems.faulty_filesystem import FaultyFilesystem
from tests.running import MusterCommand

DRIVER = "echo begun; sleep 2; echo done"
RUN_DEADLINE_S = 300.0  # no fault of the tests lasts for more than 60 s
LOST = ("lost", "failed")


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: what `muster run` printed, and the files behind the filesystem, where no fault is."""

    code: int
    out: str
    err: str
    behind: Path

    def lost_nodes(self) -> list[Any]:
        return [event for event in self.events() if event["event"] == "node" and event.get("state") in LOST]

    def events(self) -> list[dict[str, Any]]:
        found = []
        for file in sorted(self.behind.glob("muster-runs/*/attempt-*/events-*.jsonl")):
            for line in file.read_text().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:  # torn while the filesystem was full
                    continue
        return found

    def succeeded(self) -> bool:
        return self.code == 0 and self.out.split() == ["begun", "done"]

    def describe(self) -> str:
        logs = [
            *self.behind.glob("muster-runs/*/attempt-*/logs/node-*.log"),
            *self.behind.glob("muster-runs/*/job.out"),
        ]
        outcomes = [file.read_text() for file in self.behind.glob("muster-runs/*/attempt-*/outcome")]
        tails = [f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(logs)]
        return "\n".join([f"exit code {self.code}", self.err, *outcomes, *tails])


def run_on(
    filesystem: FaultyFilesystem,
    python: str,
    nodes: int = 3,
    driver: str = DRIVER,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    ray: bool = False,
) -> FinishedRun:
    """Run a job whose runs directory is on the filesystem; a fault must not keep it from ending."""
    # The driver's own directory is elsewhere: what it does about a failing disk is not Muster's concern.
    command = MusterCommand(cwd=filesystem.path.parent, python=python, env=dict(env or {}))
    runs = ["--runs-dir", str(filesystem.path / "muster-runs"), *options]
    process = command.start(*command.local_args(*runs, "--", "sh", "-c", driver, nodes=nodes, ray=ray))
    try:
        out, err = process.communicate(timeout=RUN_DEADLINE_S)
    except subprocess.TimeoutExpired:
        filesystem.clear()
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the run did not end within {RUN_DEADLINE_S:g} s\n{out}\n{err}") from None
    return FinishedRun(process.returncode, out, err, filesystem.behind)


def role_of(path: str) -> str:
    """The path of a file without what differs from run to run: `muster-runs/*/attempt-0/status-0.json`."""
    path = re.sub(r"^muster-runs/[^/]+", "muster-runs/*", path)
    path = re.sub(r"\.[\w-]+\.\d+\.tmp$", ".tmp", path)
    return re.sub(r"\.[\w-]+\.\d+\.tmp\.link$", ".tmp.link", path)


def pattern_of(role: str) -> str:
    """A pattern for the paths that have this role."""
    text = re.escape(role).replace(r"muster\-runs/\*", r"muster-runs/[^/]+")
    return re.sub(r"\\\.tmp(\\\.link)?$", r"\\.[\\w-]+\\.\\d+\\.tmp\1", text)
