"""Slurm's commands: submit, cancel, ask. Each is one RPC; nothing here is called in a loop shorter than 30 s."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.backends.errors import BackendError, SubmissionRefused

ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ]
)
DEFAULT_KILL_WAIT_S = 30.0


# Where a variable is not named after its option.
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "mem": "SBATCH_MEM_PER_NODE",
    "switches": "SBATCH_REQ_SWITCH",
    "time": "SBATCH_TIMELIMIT",
}


def submit(script: str, written: Iterable[str], more: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
    """sbatch, with `more` of its options and `arguments` of the script's; returns the job id.

    sbatch would let SBATCH_ variables win over the options written in the script.
    """
    env = dict(os.environ)
    for name in (*written, "array"):
        env.pop(_VARIABLES.get(name, "SBATCH_" + name.upper().replace("-", "_")), None)
    done = _command(["sbatch", "--parsable", *more, script, *arguments], env)
    if done.returncode != 0:
        raise SubmissionRefused(f"sbatch refused the job: {_last_line(done.stderr)}")
    return done.stdout.strip().partition(";")[0]


def cancel(*job_ids: str, pending_only: bool = False) -> None:
    done = _command(["scancel", *(["--state=PENDING"] if pending_only else []), *job_ids])
    if done.returncode != 0:
        raise BackendError(f"scancel {' '.join(job_ids)} failed: {_last_line(done.stderr)}")


def job_state(job_id: str) -> str | None:
    """PENDING, RUNNING, ... ; None when Slurm does not know the job (any more).

    Of several jobs, with commas: the state of the first that has not ended, else the last one's. A job of several
    groups has a line for each, in no order: the run lives and dies with the first group's.
    """
    states = job_states(job_id)
    known = [state for one in job_id.split(",") if (state := states.get(f"{one}+0", states.get(one)))]
    known = known or list(states.values())[:1]
    return next((state for state in known if state not in ENDED), known[-1] if known else None)


def job_states(job_id: str) -> dict[str, str]:
    """The state of every task of an array, or group of a job, by its id: `17_3`, `17+1`."""
    done = _command(["squeue", "--noheader", "--array", "--states=all", f"--jobs={job_id}", "--format=%i %T"])
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        raise BackendError(f"squeue failed: {_last_line(done.stderr)}")
    return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)


def exit_code(job_id: str) -> int | None:
    """The code with which an ended job's script left, 143 if it was cancelled; None where nobody can tell any more."""
    shown = _command(["scontrol", "--oneliner", "show", "job", job_id]).stdout
    if "JobState=CANCELLED" in shown:
        return 143
    match = re.search(r"JobState=(?:COMPLETED|FAILED) .*?ExitCode=(\d+):0", shown)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Queue:
    """The user's jobs that are not over: their ids, those of their arrays, and the scripts they run."""

    ids: frozenset[str]
    scripts: frozenset[str]

    def has(self, job_id: str, script: str) -> bool:
        return job_id.partition("_")[0] in self.ids or script in self.scripts


def queue() -> Queue:
    """Everything that is pending, running or completing, in one RPC."""
    done = _command(["squeue", "--noheader", f"--user={os.geteuid()}", "--format=%A|%F|%o"])
    if done.returncode != 0:
        raise BackendError(f"squeue failed: {_last_line(done.stderr)}")
    rows = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    return Queue(frozenset(word for row in rows for word in row[:2]), frozenset(row[2] for row in rows))


@functools.lru_cache(maxsize=1)
def kill_wait() -> float:
    """Seconds between Slurm's TERM and KILL here; asked once, at submission."""
    try:
        match = re.search(r"KillWait\s*=\s*(\d+)", _command(["scontrol", "show", "config"]).stdout)
    except BackendError:
        match = None
    return float(match[1]) if match else DEFAULT_KILL_WAIT_S


def partition_sizes() -> dict[str, int]:
    """Nodes of every partition, by name; the default one also under "". Empty when Slurm does not answer."""
    sizes: dict[str, int] = {}
    for line in _command(["sinfo", "--noheader", "--noconvert", "--format=%P %D"]).stdout.splitlines():
        name, _, nodes = line.strip().partition(" ")
        for key in {name.rstrip("*"), "" if name.endswith("*") else name.rstrip("*")}:
            sizes[key] = sizes.get(key, 0) + int(nodes)  # one line for each state that its nodes are in
    return sizes


def _command(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{argv[0]} could not be run: {error}") from error


def _last_line(text: str) -> str:
    lines = [line.removeprefix("sbatch: error: ").strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:]) or "no reason given"
