"""Measurement of one round of one launcher.

    job start      the first line of the batch script (for Muster: MUSTER_JOB_START, its job.sh's first assignment)
    driver start   the driver's first line
    driver end     the driver's last line
    job end        the end of the batch script's process

The first three are recorded inside the job. The last comes from a pidfd on the batch script's process, which is exact
to the millisecond and the same for every launcher. Slurm's EndTime has whole seconds, and `sbatch --wait` and
`muster run` learn of the end later.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from launchers import Launcher, LaunchFailed, Site, Submitted, driver_file, end, wait_for

JOB_START_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 120.0
FOLLOWER_TIMEOUT_S = 30.0
IDLE_PROCESSES = frozenset({"tini", "slurmd"})  # on a lab node without a job


@dataclass(frozen=True)
class Round:
    """Results of one round; times in seconds, phases since the job's start."""

    to_driver_s: float
    driver_s: float
    after_driver_s: float
    phases: dict[str, float]
    load_before: float

    def to_json(self) -> dict[str, object]:
        phases = {name: round(value, 3) for name, value in self.phases.items()}
        times = {name: round(getattr(self, name), 3) for name in ("to_driver_s", "driver_s", "after_driver_s")}
        return {**times, "phases": phases, "load_before": round(self.load_before, 2)}


def measure(launcher: Launcher, site: Site, directory: Path, timeout_s: float) -> Round:
    """Run the driver through the launcher and measure it; return when the nodes are idle again."""
    directory.mkdir(parents=True)
    load = os.getloadavg()[0]
    submitted = launcher.submit(site, directory)
    try:
        job_end = _job_end(site, submitted.job_id, timeout_s)
        wait_until_idle(site)
        _check_follower(submitted)
        return _round(launcher, site, directory, job_end, load)
    except LaunchFailed as error:
        _cancel(site, submitted.job_id)
        wait_until_idle(site)
        raise LaunchFailed(f"{launcher.name}: {error}\n{_log_tail(directory)}") from None
    finally:
        if submitted.follower is not None:
            end(submitted.follower)


def _round(launcher: Launcher, site: Site, directory: Path, job_end: float, load: float) -> Round:
    try:
        driver = json.loads(driver_file(directory).read_text())
    except FileNotFoundError:
        raise LaunchFailed("the driver did not run to its end") from None
    if driver["alive"] != site.nodes:
        raise LaunchFailed(f"the driver saw {driver['alive']} nodes alive, not {site.nodes}")
    start = launcher.job_start(directory)
    return Round(
        to_driver_s=driver["start"] - start,
        driver_s=driver["end"] - driver["start"],
        after_driver_s=job_end - driver["end"],
        phases={name: when - start for name, when in launcher.phases(directory).items()},
        load_before=load,
    )


def _job_end(site: Site, job_id: str, timeout_s: float) -> float:
    """Return when the batch script's process ended."""
    pid = wait_for(f"job {job_id} to start", lambda: _batch_process(site, job_id), JOB_START_TIMEOUT_S)
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise LaunchFailed(f"job {job_id} has not ended after {timeout_s:g} s")
        return time.time()
    finally:
        os.close(descriptor)


def _batch_process(site: Site, job_id: str) -> int | None:
    """Return the pid of the job's batch script: not of a subshell, which is a child of such a process."""
    script = f"job{int(job_id):05d}/slurm_script".encode()
    found = {}
    for node in site.lab.plan.node_names:
        for pid in site.lab.processes(node):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if any(word.endswith(script) for word in words):
                found[pid] = parent
    return next((pid for pid, parent in found.items() if parent not in found), None)


def wait_until_idle(site: Site) -> None:
    """Return when no node runs a process of a job: the next launcher must start on idle nodes."""

    def poll() -> bool | None:
        pids = [pid for node in site.lab.plan.node_names for pid in site.lab.processes(node)]
        return True if all(_name(pid) in IDLE_PROCESSES for pid in pids) else None

    wait_for("the nodes to be idle again", poll, IDLE_TIMEOUT_S)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "tini"  # gone meanwhile


def _check_follower(submitted: Submitted) -> None:
    if submitted.follower is None:
        return
    try:
        code = submitted.follower.wait(FOLLOWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"`muster run` has not ended {FOLLOWER_TIMEOUT_S:g} s after its job") from None
    if code:
        raise LaunchFailed(f"`muster run` exited with {code}")


def _cancel(site: Site, job_id: str) -> None:
    site.lab.exec(["scancel", job_id], capture_output=True, timeout=60)


def _log_tail(directory: Path) -> str:
    try:
        return "\n".join((directory / "job.log").read_text(errors="replace").splitlines()[-15:])
    except FileNotFoundError:
        return "(the job wrote nothing)"
