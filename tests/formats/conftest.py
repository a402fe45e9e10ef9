"""Real runs whose files, events, messages and environments are compared with the recorded formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.formats.shape import Golden
from tests.ray_turns import turn

RECORDER = Path(__file__).parent / "wire_recorder.py"
RUN_S = 300.0
WRITE_ENVIRONMENT = (
    "import json, os; json.dump(dict(os.environ), open(os.environ['MUSTER_OUTPUT_DIR'] + '/{name}', 'w'))"
)

# Two nodes and a spare; rank 1 fails in cycle 0, so that there is a second cycle.
GANG_JOB = {
    "nodes": 2,
    "spares": 1,
    "ray": False,
    "on_node_loss": "restart",
    "restart_on_driver_failure": True,
    "max_restarts": 2,
    "procs_per_node": 2,
    "services": {
        "web": {
            "command": f'python -c "{WRITE_ENVIRONMENT.format(name="web")}"; exec python -m http.server {{http}}',
            "ports": {"http": "auto"},
        },
        "sandbox": {"kind": "sandbox"},
    },
    "command": [
        "bash",
        "-c",
        f'[ $RANK != 1 ] || python -c "{WRITE_ENVIRONMENT.format(name="rank")}"; [ "$RANK $MUSTER_CYCLE" != "1 0" ]',
    ],
}
RAY_JOB = {
    "nodes": 2,
    "cpus_per_node": 1,
    "ray_logs": "always",
    "command": ["python", "-c", WRITE_ENVIRONMENT.format(name="driver")],
}


@dataclass(frozen=True)
class RecordedRun:
    """A run that is over: its directory, and the control messages that were on the wire."""

    directory: Path
    messages: list[dict[str, Any]]
    status: dict[str, Any]

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = (self.directory / "attempt-0" / "events-0.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment that a process of the run wrote to its output directory."""
        found: dict[str, str] = json.loads((self.directory / "output" / name).read_text())
        return found


def record_run(directory: Path, job: dict[str, Any]) -> RecordedRun:
    (directory / "home").mkdir()
    (directory / "job.json").write_text(json.dumps(job))
    env = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    env |= {"HOME": str(directory / "home"), "MUSTER_SITE_CONFIG": str(directory / "none.yaml")}
    muster = [sys.executable, "-m", "muster.cli.main"]
    run = [*muster, "run", "--backend", "local", "--python", sys.executable, "-f", "job.json"]
    record = ["unshare", "--net", sys.executable, str(RECORDER), str(directory / "messages"), *run]
    options: dict[str, Any] = {"cwd": directory, "env": env, "capture_output": True, "text": True, "timeout": RUN_S}
    done = subprocess.run(record, **options)
    assert done.returncode == 0, done.stderr
    status = subprocess.run([*muster, "status", "--json"], **options)
    (run_directory,) = (directory / "muster-runs").iterdir()
    messages = [json.loads(line) for line in (directory / "messages").read_text().splitlines()]
    return RecordedRun(run_directory, messages, json.loads(status.stdout))


def _skip_without_root() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("recording the control channel needs root and ip (iproute2)")


@pytest.fixture(scope="session")
def gang_run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    _skip_without_root()
    return record_run(tmp_path_factory.mktemp("gang"), GANG_JOB)


@pytest.fixture(scope="session")
def ray_run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    _skip_without_root()
    with turn():
        return record_run(tmp_path_factory.mktemp("ray"), RAY_JOB)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], Golden]:
    """Return a recorded format by its name."""
    return lambda name: Golden(name, record=request.config.getoption("--golden"))
