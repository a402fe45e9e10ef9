"""Paths in a run directory. No other module builds them.

<runs dir>/<run id>/
  job.json  env.json  services.json  job.sh  job.out  agent.pyz  muster-library.zip  token  ray-token  submission.json
  output/  report.html  metrics.prom  sections/0003.json
  attempt-0/
    canary  hosts  steps.log  phases.log  stop.json  beat  reserve  outcome  sequel.json  slurm-job.json  job-end
    bad-nodes.json  avoided-nodes  no-restart.json
    lead-0.json  status-0.json  events-0.jsonl           for each term, that is, for each leader
    lead-0-gone.json                                     if its leader was killed and left no process
    lead-0.json.claim/                                   the claim itself, on a filesystem without hard links
    nodes/0003.json  nodes/0003.alive  services/<name>.json  services/<name>.urls
    logs/driver.log  logs/node-0003.log  logs/stacks-0003.txt  logs/ray/<host>.tar.gz  logs/guest-<id>.log
    logs/services/<name>/<host>.log  logs/cycle-1/services/<name>/<host>.log
    logs/cycle-0/rank-0003.log  logs/cycle-1/ray/<host>.tar.gz
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
    def canary(self) -> str:
        """Written by the job script before it starts the step: a node that cannot see it fails at once."""
        return self._at("canary")

    @property
    def hosts(self) -> str:
        """Names of the step's nodes by node index, one per line."""
        return self._at("hosts")

    @property
    def steps_log(self) -> str:
        """Stderr of the launcher (srun or the local one): it names nodes whose agent never started."""
        return self._at("steps.log")

    @property
    def phases_log(self) -> str:
        """Phase lines for humans; the job script copies them to its own output."""
        return self._at("phases.log")

    @property
    def outcome(self) -> str:
        """The end of the attempt: one JSON object with `exit_code` first, since the job script reads it with sed."""
        return self._at("outcome")

    @property
    def next_attempt(self) -> str:
        """The decision about a further attempt (`again`: requeue, chain or none), for jobs that may have one."""
        return self._at("sequel.json")

    @property
    def bad_nodes(self) -> str:
        """Evidence against nodes of this attempt, if there is any; see muster/rundir/node_evidence.py."""
        return self._at("bad-nodes.json")

    @property
    def avoided_nodes(self) -> str:
        """Hosts that the next attempt avoids, with commas between them, for the job script."""
        return self._at("avoided-nodes")

    @property
    def slurm_job(self) -> str:
        """The Slurm job (`job_id`, `restarts`), if Muster submitted it: only then may Muster cancel it."""
        return self._at("slurm-job.json")

    @property
    def job_end(self) -> str:
        """Progress of the job's end, one word per line: the job script has `seen` the outcome, and has `ended`.

        A process that saw in Slurm that the job has ended adds `gone`.
        """
        return self._at("job-end")

    @property
    def job_claim(self) -> str:
        """Claimed by the node that asks Slurm to cancel a job whose script is lost."""
        return self._at("job-claim.json")

    @property
    def job_left(self) -> str:
        """Written when the batch host did not answer at the run's end: its job script will not end the Slurm job."""
        return self._at("job-left.json")

    @property
    def reserve(self) -> str:
        """Disk space reserved for the outcome: removed just before that is written, so that it fits on a full disk."""
        return self._at("reserve")

    @property
    def stop_request(self) -> str:
        return self._at("stop.json")

    @property
    def beat(self) -> str:
        """Touched by `muster.beat()`."""
        return self._at("beat")

    @property
    def no_restart(self) -> str:
        """The `reason` for which a program of this attempt has forbidden restarts and requeues, once one has."""
        return self._at("no-restart.json")

    @property
    def down_request(self) -> str:
        """A request to an idle cluster (`muster up`) to end with success."""
        return self._at("down")

    @property
    def sessions_dir(self) -> str:
        """One file for each `muster attach` session on a node, touched while it lasts."""
        return self._at("sessions")

    @property
    def guests_dir(self) -> str:
        """Requests and outcomes of guest sessions on the running cluster. 0700: a request is a command."""
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
        """Output of the driver, or of a gang's rank 0, in all cycles; muster/process/log_segments.py has its parts."""
        return self._at("logs", "driver.log")

    def ray_logs_dir(self, cycle: int = 0) -> str:
        """Archives of Ray's logs; each cycle after the first has a separate directory."""
        return self._at("logs", *([f"cycle-{cycle}"] if cycle else []), "ray")

    def ray_logs_dirs(self) -> list[str]:
        """Return the directories of Ray's log archives of all cycles, in order; not all of them need exist."""
        return [self.ray_logs_dir(cycle) for cycle in sorted({0, *self._cycles()})]

    def rank_output(self, rank: int, cycle: int) -> str:
        """Return the log of one process of a gang in a cycle: of rank 0, which users follow, the driver's log."""
        return self.rank_log(rank, cycle) if rank else self.driver_log

    def rank_log(self, rank: int, cycle: int) -> str:
        """Output of one process of a gang, other than rank 0, in a cycle."""
        return self._at("logs", f"cycle-{cycle}", f"rank-{rank:04d}.log")

    def rank_logs(self, rank: int) -> list[str]:
        """Return the existing logs of one process of a gang, in the order of cycles."""
        logs = [self.rank_log(rank, cycle) for cycle in self._cycles()]
        return [log for log in logs if os.path.exists(log)]

    def _cycles(self) -> list[int]:
        """Return the cycles that have a log directory, in order."""
        return _numbers(self._at("logs"), r"cycle-(\d+)")

    def leader(self, term: int = 0) -> str:
        """The claim of the term's leader, and the address where it listens."""
        return self._at(f"lead-{term}.json")

    def leader_gone(self, term: int) -> str:
        """The certificate that the agent that claimed the term has ended, with all its processes."""
        return self._at(f"lead-{term}-gone.json")

    def leaders_gone(self) -> list[int]:
        """Return the terms with such a certificate."""
        return _numbers(self.root, r"lead-(\d+)-gone\.json")

    def claims(self) -> list[int]:
        """Return the claimed terms. Lists the directory: a network filesystem may cache that a file did not exist."""
        return _numbers(self.root, r"lead-(\d+)\.json")

    def terms(self) -> list[int]:
        """Return the terms whose leader has published a status, in order. The last one is current."""
        return _numbers(self.root, r"status-(\d+)\.json")

    def event_terms(self) -> list[int]:
        """Return the terms whose leader has written events, in order."""
        return _numbers(self.root, r"events-(\d+)\.jsonl")

    def status(self, term: int = 0) -> str:
        return self._at(f"status-{term}.json")

    def events(self, term: int = 0) -> str:
        return self._at(f"events-{term}.jsonl")

    def node_record(self, node_index: int) -> str:
        return self._at("nodes", f"{node_index:04d}.json")

    def startup_heartbeat(self, node_index: int) -> str:
        """Rewritten by each of the first nodes until it has a leader; the prelude writes it first."""
        return self._at("nodes", f"{node_index:04d}.alive")

    @property
    def services_dir(self) -> str:
        """One record for each service, with its current endpoints."""
        return self._at("services")

    def service_record(self, name: str) -> str:
        return self._at("services", f"{name}.json")

    def service_urls(self, name: str) -> str:
        """The endpoints of a service, one in a line, if they are too many for a variable."""
        return self._at("services", f"{name}.urls")

    def endpoint_replicas(self, name: str) -> str:
        """The replicas of an endpoint that a program of the run publishes."""
        return self._at("services", f"{name}.replicas")

    def service_log(self, name: str, host: str, cycle: int) -> str:
        """Output of a service on a host; `host` comes from `host_file_name`. Later cycles have separate directories."""
        return self._at("logs", *([f"cycle-{cycle}"] if cycle else []), "services", name, f"{host}.log")

    def stacks(self, node_index: int) -> str:
        """Stacks of a node's processes at the time the driver had stalled."""
        return self._at("logs", f"stacks-{node_index:04d}.txt")

    def node_log(self, node_index: int) -> str:
        return self._at("logs", f"node-{node_index:04d}.log")


@dataclass(frozen=True)
class RunPaths:
    """A run: files that outlive attempts, and the attempts."""

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
        """Output of the job script where Slurm writes no file for it."""
        return self._at("job.out")

    @property
    def agent(self) -> str:
        return self._at("agent.pyz")

    @property
    def library(self) -> str:
        """The `muster` library on PYTHONPATH of the driver and of Ray's workers."""
        return self._at(LIBRARY)

    @property
    def token(self) -> str:
        return self._at("token")

    @property
    def ray_token(self) -> str:
        """The token of clients of the Ray cluster, on any node; 0600."""
        return self._at("ray-token")

    @property
    def env(self) -> str:
        """Values of --env, 0600: they may be secrets, so job.json holds only the names."""
        return self._at("env.json")

    @property
    def services(self) -> str:
        """The job's services as agents need them, 0600: their variables may be secrets."""
        return self._at("services.json")

    def section_times(self, node_index: int) -> str:
        """How long the sections of programs took on a node, for the limits of later cycles and attempts."""
        return self._at("sections", f"{node_index:04d}.json")

    @property
    def queue(self) -> str:
        """Slurm's last answer about the run's pending job, and its time: further readers need not query Slurm."""
        return self._at("queue.json")

    @property
    def submission(self) -> str:
        """Backend, job id and time of submission."""
        return self._at("submission.json")

    @property
    def report(self) -> str:
        """The report of a finished run, written by the first process that saw its end."""
        return self._at("report.html")

    @property
    def metrics(self) -> str:
        """Metrics of the run, for the textfile collector of Prometheus' node exporter."""
        return self._at("metrics.prom")

    @property
    def output_dir(self) -> str:
        """MUSTER_OUTPUT_DIR: the driver's results, shared by all attempts."""
        return self._at("output")

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self._at(f"attempt-{number}"))

    def attempts(self) -> list[AttemptPaths]:
        """Return all attempts, in order."""
        return [self.attempt(number) for number in _numbers(self.root, r"attempt-(\d+)")]

    def newest_attempt(self) -> AttemptPaths | None:
        """Return the attempt with the highest number; None before the first has begun."""
        attempts = self.attempts()
        return attempts[-1] if attempts else None


def _numbers(directory: str, pattern: str) -> list[int]:
    """Return the numbers in the names that match `pattern`, in order; empty if the directory cannot be read."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(int(match[1]) for match in (re.fullmatch(pattern, name) for name in names) if match)
