"""The launchers that are compared: how each is submitted, and what its job says of itself afterwards.

All get the same environment (a home of the round's own, Ray's authentication mode explicit), the same interpreter, the
same driver, whole nodes and as many CPUs in Ray. By default Ray has no authentication and a dashboard, and so have
`by_hand` and `symmetric_run`; Muster has a token and no dashboard. `by_hand_no_dashboard` tells how much of the
difference comes from that.
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
SUBMITTED_S = 60.0
Found = TypeVar("Found")


class LaunchFailed(Exception):
    """A job was not started, or did not do what it was started for."""


@dataclass(frozen=True)
class Site:
    """Where jobs are submitted: a lab, a number of its nodes, and the interpreter on them."""

    lab: Lab
    nodes: int
    python: str

    def environment(self, directory: Path) -> dict[str, str]:
        """What a job inherits: nothing of the caller's Ray, Slurm or Muster settings, and no home but its own."""
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
    """A job in the queue, and the process that follows it, where the launcher has one."""

    job_id: str
    follower: subprocess.Popen[bytes] | None = None


class Launcher(Protocol):
    """One way to run the driver on a Ray cluster under Slurm. `directory` is the round's own."""

    @property
    def name(self) -> str: ...

    def submit(self, site: Site, directory: Path) -> Submitted: ...

    def job_start(self, directory: Path) -> float:
        """When the first line of the batch script ran."""

    def phases(self, directory: Path) -> dict[str, float]:
        """When the steps on the way to the driver were reached."""


@dataclass(frozen=True)
class BatchScript:
    """A batch script of ours, which signals its phases by files."""

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
            timeout=SUBMITTED_S,
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
    """`muster run` as a person types it: submits with sbatch and follows; all else is default."""

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
        def look() -> str | None:
            if follower.poll() is not None:
                raise LaunchFailed("`muster run` ended before its job was submitted")
            records = (read_json(str(path)) for path in directory.glob("*/submission.json"))
            return next((record["job_id"] for record in records if record), None)

        return wait_for("the job's submission", look, SUBMITTED_S)

    def job_start(self, directory: Path) -> float:
        return float(read_status(self._run(directory))["timings"]["job_start"])

    def phases(self, directory: Path) -> dict[str, float]:
        """From the status and the events: the same source that people have."""
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
    """Where the round's driver notes its times."""
    return directory / "driver.json"


def wait_for(what: str, look: Callable[[], Found | None], deadline_s: float) -> Found:
    """Look ten times a second until there is something; fail by name at the deadline."""
    end_at = time.monotonic() + deadline_s
    while (found := look()) is None:
        if time.monotonic() > end_at:
            raise LaunchFailed(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.1)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that we started, and reap it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
