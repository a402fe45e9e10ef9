"""The compared launchers: how each is submitted, and the times that its job records.

All have the same environment (a new home per round, Ray's authentication mode explicit), interpreter, driver, whole
nodes and number of CPUs in Ray. By default Ray has no authentication and a dashboard, and so have `by_hand` and
`symmetric_run`; Muster has a token and no dashboard. `by_hand_no_dashboard` shows how much of the difference the
dashboard causes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from muster.lab import Lab
from muster.rundir import RunPaths, read_json
from muster.runs.status import read_status

JOBS = Path(__file__).resolve().parent / "jobs"
SUBMIT_TIMEOUT_S = 60.0
Found = TypeVar("Found")


class LaunchFailed(Exception):
    """A job did not start or did not succeed."""


@dataclass(frozen=True)
class Site:
    """The lab to which jobs are submitted, their number of nodes, and the interpreter on the nodes."""

    lab: Lab
    nodes: int
    python: str

    def environment(self, directory: Path) -> dict[str, str]:
        """Return a job's environment, without the caller's Ray, Slurm and Muster settings, and with a separate home."""
        settings = ("RAY_", "SLURM_", "SBATCH_", "MUSTER_", "XDG_", "VIRTUAL_ENV", "CONDA_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        home = directory / "home"
        home.mkdir(exist_ok=True)
        path = os.path.dirname(self.python) + os.pathsep + self.lab.env_additions()["PATH"]
        return {
            **inherited,
            **self.lab.env_additions(),
            "PATH": path,
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def driver(self, directory: Path) -> list[str]:
        return [self.python, str(JOBS / "driver.py"), str(driver_file(directory))]


@dataclass(frozen=True)
class Submitted:
    """A submitted job, and the process that follows it, if the launcher has one."""

    job_id: str
    follower: subprocess.Popen[bytes] | None = None


class Launcher(Protocol):
    """One way to run the driver on a Ray cluster under Slurm. `directory` belongs to the round."""

    @property
    def name(self) -> str: ...

    def submit(self, site: Site, directory: Path) -> Submitted: ...

    def job_start(self, directory: Path) -> float:
        """Return when the first line of the batch script ran."""

    def phases(self, directory: Path) -> dict[str, float]:
        """Return when each phase of the start was reached."""


@dataclass(frozen=True)
class BatchScript:
    """A batch script in jobs/, which records its phases as files."""

    name: str
    script: str
    variables: dict[str, str] = field(default_factory=dict)
    signals: dict[str, str] = field(default_factory=dict)  # phase -> pattern of its files; the last one counts

    def submit(self, site: Site, directory: Path) -> Submitted:
        options = ["--parsable", f"--nodes={site.nodes}", "--ntasks-per-node=1", "--exclusive"]
        job = [str(JOBS / self.script), str(directory), str(JOBS), *site.driver(directory)]
        done = subprocess.run(
            ["sbatch", *options, f"--output={directory}/job.log", *job],
            env={**site.environment(directory), **self.variables},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=SUBMIT_TIMEOUT_S,
        )
        if done.returncode:
            raise LaunchFailed(f"sbatch: {done.stderr.strip()}")
        return Submitted(done.stdout.strip())

    def job_start(self, directory: Path) -> float:
        return float((directory / "job_start").read_text())

    def phases(self, directory: Path) -> dict[str, float]:
        times = {phase: [path.stat().st_mtime for path in directory.glob(p)] for phase, p in self.signals.items()}
        return {phase: max(found) for phase, found in times.items() if found}


@dataclass(frozen=True)
class Muster:
    """`muster run` with default options: it submits with sbatch and follows the run."""

    name: str = "muster"

    def submit(self, site: Site, directory: Path) -> Submitted:
        command = [site.python, "-m", "muster.cli.main", "run", "--nodes", str(site.nodes), "--python", site.python]
        with open(directory / "job.log", "wb") as log:
            follower = subprocess.Popen(
                [*command, "--runs-dir", str(directory), "--", *site.driver(directory)],
                env=site.environment(directory),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            return Submitted(self._job_id(directory, follower), follower)
        except BaseException:
            end(follower)
            raise

    def _job_id(self, directory: Path, follower: subprocess.Popen[bytes]) -> str:
        def poll() -> str | None:
            if follower.poll() is not None:
                raise LaunchFailed("`muster run` ended before its job was submitted")
            records = (read_json(str(path)) for path in directory.glob("*/submission.json"))
            return next((record["job_id"] for record in records if record), None)

        return wait_for("the job's submission", poll, SUBMIT_TIMEOUT_S)

    def job_start(self, directory: Path) -> float:
        return float(read_status(self._run(directory))["timings"]["job_start"])

    def phases(self, directory: Path) -> dict[str, float]:
        """Read the times from the status and the events, as users do."""
        run = self._run(directory)
        timings = read_status(run)["timings"]
        attempt = run.newest_attempt()
        assert attempt is not None
        events = [json.loads(line) for line in Path(attempt.events()).read_text().splitlines()]
        arrived = [event["time"] for event in events if event["event"] == "node" and event["state"] == "arrived"]
        named = {name: timings[name] for name in ("lead_ready", "ray_head_ready", "ray_ready")}
        after = {"driver_end": timings["driver_end"], "ended": timings["ended"]}
        return {"lead_ready": named.pop("lead_ready"), "all_arrived": max(arrived), **named, **after}

    def _run(self, directory: Path) -> RunPaths:
        (job,) = directory.glob("*/job.json")
        return RunPaths(str(job.parent))


_HAND_SIGNALS = {"head_started": "head", "all_joined": "joined-*", "done": "done"}
LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher
    for launcher in (
        BatchScript("by_hand", "by_hand.sh", signals=_HAND_SIGNALS),
        BatchScript("symmetric_run", "symmetric_run.sh"),
        Muster(),
        BatchScript("by_hand_no_dashboard", "by_hand.sh", {"HEAD_OPTIONS": "--include-dashboard=false"}, _HAND_SIGNALS),
    )
}
COMPARED = ("by_hand", "symmetric_run", "muster")


def driver_file(directory: Path) -> Path:
    """Return the file in which the round's driver records its times."""
    return directory / "driver.json"


def wait_for(what: str, poll: Callable[[], Found | None], timeout_s: float) -> Found:
    """Poll ten times a second until the result is not None; raise LaunchFailed after the timeout."""
    end_at = time.monotonic() + timeout_s
    while (found := poll()) is None:
        if time.monotonic() > end_at:
            raise LaunchFailed(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.1)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate and reap a child process."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
