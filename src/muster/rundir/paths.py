"""Where everything lies in a run directory. No other module builds these paths.

<runs dir>/<run id>/
  job.json  env.json  services.json  job.sh  job.out  agent.pyz  muster-library.zip  token  ray-token  submission.json
  output/  report.html  metrics.prom
  attempt-0/
    canary  hosts  steps.log  phases.log  stop.json  beat  reserve  outcome  sequel.json  slurm-job.json  job-end
    lead-0.json  status-0.json  events-0.jsonl           for each term, that is, for each leader
    nodes/0003.json  nodes/0003.alive  services/<name>.json
    logs/driver.log  logs/node-0003.log  logs/stacks-0003.txt  logs/ray/<host>.tar.gz  logs/guest-<id>.log
    logs/services/<name>/<host>.log  logs/cycle-1/services/<name>/<host>.log
    logs/cycle-0/driver.log  logs/cycle-0/rank-0003.log  logs/cycle-1/ray/<host>.tar.gz
    guests/<id>.json  guests/<id>.stop  guests/<id>.outcome  sessions/<host>-<pid>  down
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

LIBRARY = "muster-library.zip"
RAY_LOGS_SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class AttemptPaths:
    """One attempt (one Slurm start or requeue) of a run."""

    root: str

    def _at(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def number(self) -> int:
        return int(self.root.rpartition("-")[2])

    @property
    def hosts(self) -> str:
        """Names of the step's nodes by rank, one a line."""
        return self._at("hosts")

    @property
    def steps_log(self) -> str:
        """The launcher's own stderr: who could not even start."""
        return self._at("steps.log")

    @property
    def phases_log(self) -> str:
        """Phase lines for people; the job script copies them, and the driver's output, to its own."""
        return self._at("phases.log")

    @property
    def outcome(self) -> str:
        """How the attempt ended, one JSON object with `exit_code` first: the batch script reads that with sed."""
        return self._at("outcome")

    @property
    def next_attempt(self) -> str:
        """What follows the attempt (`again`: requeue, chain or none), of a job that may begin again."""
        return self._at("sequel.json")

    @property
    def slurm_job(self) -> str:
        """The Slurm job (`job_id`, `restarts`), if Muster submitted it: only then may it be cancelled."""
        return self._at("slurm-job.json")

    @property
    def job_end(self) -> str:
        """How far the job's end is, a word a line: the job script has `seen` the outcome, and has `ended`.

        `gone` is added by a process that saw in Slurm that the job has ended.
        """
        return self._at("job-end")

    @property
    def job_claim(self) -> str:
        """Which node asks Slurm to cancel the job that is left."""
        return self._at("job-claim.json")

    @property
    def job_left(self) -> str:
        """The batch host did not answer when the run ended: its job script will not end the Slurm job."""
        return self._at("job-left.json")

    @property
    def reserve(self) -> str:
        """Space held for the outcome: removed just before it is written, which a full disk must not prevent."""
        return self._at("reserve")

    @property
    def stop_request(self) -> str:
        return self._at("stop.json")

    @property
    def beat(self) -> str:
        """Touched by `muster.beat()`."""
        return self._at("beat")

    @property
    def down_request(self) -> str:
        """A request to an idle cluster (`muster up`) to end as it should: with success."""
        return self._at("down")

    @property
    def sessions_dir(self) -> str:
        """One file for each shell or command that somebody has on a node, touched while it lasts."""
        return self._at("sessions")

    @property
    def guests_dir(self) -> str:
        """Further drivers on the running cluster: their requests and outcomes. 0700: a request is a command."""
        return self._at("guests")

    def guest_request(self, guest: str) -> str:
        return self._at("guests", f"{guest}.json")

    def guest_stop(self, guest: str) -> str:
        return self._at("guests", f"{guest}.stop")

    def guest_outcome(self, guest: str) -> str:
        return self._at("guests", f"{guest}.outcome")

    def guest_log(self, guest: str) -> str:
        return self._at("logs", f"guest-{guest}.log")

    @property
    def driver_log(self) -> str:
        return self._at("logs", "driver.log")

    def cycle_driver_log(self, cycle: int) -> str:
        """One cycle's part of the driver's log, in a run with more than one."""
        return self._at("logs", f"cycle-{cycle}", "driver.log")

    def ray_logs_dir(self, cycle: int = 0) -> str:
        """Archives of Ray's logs; each later cycle has a directory of its own."""
        return self._at("logs", *([f"cycle-{cycle}"] if cycle else []), "ray")

    def ray_logs_dirs(self) -> list[str]:
        """Those of all cycles that there may be any of, in order."""
        return [self.ray_logs_dir(cycle) for cycle in sorted({0, *self._cycles()})]

    def rank_log(self, rank: int, cycle: int) -> str:
        """What one process of a gang wrote in a cycle."""
        return self._at("logs", f"cycle-{cycle}", f"rank-{rank:04d}.log")

    def rank_logs(self, rank: int) -> list[str]:
        """What it wrote in those cycles that there is anything of, in order."""
        logs = [self.rank_log(rank, cycle) for cycle in sorted(self._cycles())]
        return [log for log in logs if os.path.exists(log)]

    def _cycles(self) -> list[int]:
        """Those with logs of their own."""
        try:
            names = os.listdir(self._at("logs"))
        except OSError:
            return []
        return [int(m.group(1)) for m in (re.fullmatch(r"cycle-(\d+)", name) for name in names) if m]

    def leader(self, term: int = 0) -> str:
        """Who has claimed the term, and where it listens."""
        return self._at(f"lead-{term}.json")

    def claims(self) -> list[int]:
        """Terms that somebody has claimed. By listing: a network filesystem may remember that a file was not there."""
        return self._numbers(r"lead-(\d+)\.json")

    def terms(self) -> list[int]:
        """Terms that have had a leader, in order: one has published a status. The last one counts."""
        return self._numbers(r"status-(\d+)\.json")

    def _numbers(self, pattern: str) -> list[int]:
        try:
            names = os.listdir(self.root)
        except OSError:
            return []
        return sorted(int(match[1]) for match in (re.fullmatch(pattern, name) for name in names) if match)

    def status(self, term: int = 0) -> str:
        return self._at(f"status-{term}.json")

    def events(self, term: int = 0) -> str:
        return self._at(f"events-{term}.jsonl")

    def node_record(self, rank: int) -> str:
        return self._at("nodes", f"{rank:04d}.json")

    def startup_heartbeat(self, rank: int) -> str:
        """Written again and again by one of the first nodes until it has a leader; the prelude begins with it."""
        return self._at("nodes", f"{rank:04d}.alive")

    @property
    def services_dir(self) -> str:
        """One record for each service: where it can be reached now."""
        return self._at("services")

    def service_record(self, name: str) -> str:
        return self._at("services", f"{name}.json")

    def service_log(self, name: str, host: str, cycle: int) -> str:
        """What a service wrote on a host; `host` as a file may be named. Later cycles have a directory of their own."""
        return self._at("logs", *([f"cycle-{cycle}"] if cycle else []), "services", name, f"{host}.log")

    def stacks(self, rank: int) -> str:
        """What a node's processes were doing when the driver had stalled."""
        return self._at("logs", f"stacks-{rank:04d}.txt")

    def node_log(self, rank: int) -> str:
        return self._at("logs", f"node-{rank:04d}.log")


@dataclass(frozen=True)
class RunPaths:
    """A whole run: what outlives attempts, and the attempts."""

    root: str

    def _at(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def run_id(self) -> str:
        return os.path.basename(self.root)

    @property
    def job(self) -> str:
        return self._at("job.json")

    @property
    def script(self) -> str:
        return self._at("job.sh")

    @property
    def output_file(self) -> str:
        """What the job script printed, where Slurm has no file for it."""
        return self._at("job.out")

    @property
    def agent(self) -> str:
        return self._at("agent.pyz")

    @property
    def library(self) -> str:
        """On PYTHONPATH of the driver and of Ray's workers: `muster` for those who have none."""
        return self._at(LIBRARY)

    @property
    def token(self) -> str:
        return self._at("token")

    @property
    def ray_token(self) -> str:
        """For whatever speaks to the Ray cluster, on any node; 0600."""
        return self._at("ray-token")

    @property
    def env(self) -> str:
        """Values of --env, 0600: they may be secrets, so job.json holds the names alone."""
        return self._at("env.json")

    @property
    def services(self) -> str:
        """The job's services with all that agents must know, 0600: their variables may be secrets."""
        return self._at("services.json")

    @property
    def submission(self) -> str:
        """Backend, job id and time of submission."""
        return self._at("submission.json")

    @property
    def report(self) -> str:
        """The picture of a run that is over, written by whoever saw its end first."""
        return self._at("report.html")

    @property
    def metrics(self) -> str:
        """The same in figures, for Prometheus' node exporter."""
        return self._at("metrics.prom")

    @property
    def output_dir(self) -> str:
        """MUSTER_OUTPUT_DIR: the driver's own results, outside any attempt."""
        return self._at("output")

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self._at(f"attempt-{number}"))

    def newest_attempt(self) -> AttemptPaths | None:
        """The attempt with the highest number; None before the first has begun."""
        try:
            names = os.listdir(self.root)
        except OSError:
            return None
        numbers = [int(m.group(1)) for m in (re.fullmatch(r"attempt-(\d+)", name) for name in names) if m]
        return self.attempt(max(numbers)) if numbers else None
