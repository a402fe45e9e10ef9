"""Requeues: the job script decides once after each end, and informs Slurm and the run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from muster.errors import Mistake
from muster.launch.job_script import Launcher, PreludeArguments, render
from muster.launch.requeue import NEXT_ATTEMPT, check_requeue_options, requeue_code
from muster.launch.slurm_directives import options
from muster.launch.target import Target
from muster.rundir import RunPaths, read_json
from muster.spec import JobSpec

# A fake scontrol: `show job` prints the test's text, `requeue` is recorded and answered.
SCONTROL = """#!/bin/bash
case "$*" in
  "--oneliner show job $EXPECTED_ID") cat "$SLURM_SHOWS" ;;
  "requeue $EXPECTED_ID") echo requeue >>"$SLURM_ASKED"; exit "${SLURM_REFUSES:-0}" ;;
  "--oneliner show job 78") echo "JobId=78 JobState=PENDING ExcNodeList=n9 Dependency=afterany:77" ;;
  "update JobId="*) echo "$*" >>"$SLURM_ASKED.updates" ;;
  *) echo "not expected: $*" >&2; exit 9 ;;
esac
"""
# A fake sbatch: tests whether a job would fit.
SBATCH = """#!/bin/bash
echo "$*" >>"$SLURM_ASKED.tests"
[ -z "$DOES_NOT_FIT" ] || { echo "sbatch: error: $DOES_NOT_FIT" >&2; exit 1; }
"""
SHOWN = (
    "JobId=77 JobName=x JobState={state} Reason={reason} Requeue=1 Restarts={restarts} StartTime=2026-01-01T10:00:00"
)
SHOWS = {
    "scancel": SHOWN.format(state="COMPLETING", reason="None", restarts=0),
    "timeout": SHOWN.format(state="COMPLETING", reason="TimeLimit", restarts=0),
    "preempt": SHOWN.format(state="COMPLETING", reason="None", restarts=0) + " PreemptTime=2026-01-01T10:05:00",
    "an older preemption": SHOWN.format(state="COMPLETING", reason="None", restarts=0)
    + " PreemptTime=2026-01-01T09:00:00",
    "requeued": SHOWN.format(state="COMPLETING", reason="None", restarts=1),
}
ALL = ["timeout", "preempt", "node-fail", "exit=7"]


class Job:
    """A submitted job whose step ends with an outcome that the test chooses."""

    def __init__(self, directory: Path, requeue_on: Sequence[str] = ALL, **fields: Any) -> None:
        self.run = RunPaths(str(directory / "r-1"))
        self.spec = JobSpec(command=["true"], requeue_on=list(requeue_on), **fields)
        self._asked, self._shows = directory / "asked", directory / "shows"
        self._bin = directory / "bin"
        os.makedirs(self.run.root)
        self._bin.mkdir()
        for name, text in (("scontrol", SCONTROL), ("sbatch", SBATCH)):
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)

    def ends(
        self,
        outcome: dict[str, Any],
        shows: str = "scancel",
        step: str = "",
        restarts: int = 0,
        refuses: int = 0,
        arguments: Sequence[str] = (),
        task: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """One start of the job: its step runs `step`, then leaves this outcome."""
        self._shows.write_text(SHOWS[shows])
        leave = f"printf '%s\\n' {quote(json.dumps(outcome))} >$run/attempt-$MUSTER_ATTEMPT/outcome"
        words = ["bash", "-c", quote(f"run={quote(self.run.root)}\n{step}\n{leave}")]
        launcher = Launcher("slurm", words, "TASK", "NODE", attempt=NEXT_ATTEMPT)
        prelude = PreludeArguments(sys.executable)
        text = render(self.run.root, "r-1", prelude, launcher, [], requeue=requeue_code(self.spec))
        env = {
            **os.environ,
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "77",
            "EXPECTED_ID": f"77_{task}" if task else "77",
            **({"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": task} if task else {}),
            "SLURM_SHOWS": str(self._shows),
            "SLURM_ASKED": str(self._asked),
            "SLURM_REFUSES": str(refuses),
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
        }
        script = self._bin.parent / "job.sh"
        script.write_text(text)
        done = subprocess.run(["bash", str(script), *arguments], env=env, capture_output=True, text=True, timeout=60)
        assert "not expected" not in done.stderr, done.stderr
        return done

    def requeues(self) -> int:
        return len(self._asked.read_text().splitlines()) if self._asked.exists() else 0

    def updates(self) -> list[str]:
        """Changes of jobs that Slurm was asked for."""
        updates = Path(f"{self._asked}.updates")
        return updates.read_text().splitlines() if updates.exists() else []

    def next_attempt(self, attempt: int = 0) -> dict[str, str] | None:
        found: dict[str, str] | None = read_json(self.run.attempt(attempt).next_attempt)
        return found


def failed(code: int, **more: Any) -> dict[str, Any]:
    return {"exit_code": code, "state": "failed", "end_reason": f"the driver exited with {code}", **more}


STOPPED = {"exit_code": 143, "state": "stopped", "end_reason": "the job received SIGTERM", "signalled": True}
SUCCEEDED = {"exit_code": 0, "state": "succeeded", "end_reason": "the driver exited with 0"}


# -- which ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "shows", "cause"),
    [
        (STOPPED, "timeout", "timeout"),
        ({**STOPPED, "exit_code": 0}, "timeout", "timeout"),  # the driver saved its state and left
        (STOPPED, "preempt", "preempt"),
        (failed(125, lost=True), "scancel", "node-fail"),
        (failed(7), "scancel", "exit=7"),
    ],
)
def test_a_job_is_requeued_once_for_a_requested_reason(
    tmp_path: Path, outcome: dict[str, Any], shows: str, cause: str
) -> None:
    job = Job(tmp_path)
    assert job.ends(outcome, shows).returncode == outcome["exit_code"]
    assert job.requeues() == 1
    assert job.next_attempt() == {"again": "requeue", "cause": cause, "note": ""}


def test_a_hang_is_a_stall_for_requeues(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=["stall"])
    job.ends({**failed(125), "end_reason": "the run hangs: rank 3 on n2 in 'load'"})
    assert job.next_attempt() == {"again": "requeue", "cause": "stall", "note": ""}


def test_a_job_that_only_slurm_may_requeue_records_that_it_does(tmp_path: Path) -> None:
    """`scontrol requeue` of a job with `--sbatch requeue`: the run is pending, not stopped."""
    job = Job(tmp_path, requeue_on=(), sbatch={"requeue": None})
    job.ends(STOPPED, "requeued")
    assert job.requeues() == 0
    assert job.next_attempt() == {"again": "requeue", "cause": "slurm", "note": ""}


@pytest.mark.parametrize(
    ("outcome", "shows"),
    [
        (STOPPED, "scancel"),
        (STOPPED, "an older preemption"),
        (SUCCEEDED, "timeout"),
        ({**SUCCEEDED, "signalled": True}, "timeout"),  # the limit came after the driver's end
        (failed(8), "scancel"),
        (failed(125), "scancel"),  # something failed on a node that is there
    ],
)
def test_a_job_is_not_requeued_for_other_reasons(tmp_path: Path, outcome: dict[str, Any], shows: str) -> None:
    job = Job(tmp_path)
    job.ends(outcome, shows)
    assert job.requeues() == 0
    next_attempt = job.next_attempt()
    assert next_attempt is not None and next_attempt["again"] == "none"


FORBID = """printf '{"reason": "the data are wrong"}\\n' >$run/attempt-$MUSTER_ATTEMPT/no-restart.json"""


@pytest.mark.parametrize("chain", [1, 2], ids=["requeue", "chain"])
def test_after_a_program_forbade_restarts_a_failed_job_does_not_begin_again(tmp_path: Path, chain: int) -> None:
    job = Job(tmp_path, chain=chain)
    assert job.ends(failed(7), step=FORBID, arguments=("1",)).returncode == 7
    assert job.requeues() == 0
    note = "a program has forbidden it: the data are wrong"
    assert job.next_attempt() == {"again": "none", "cause": "exit=7", "note": note}
    again = job.ends(failed(7))  # Slurm has requeued it, or it is the next one of the chain
    assert (again.returncode, job.next_attempt(1)) == (7, None)
    assert "the run has ended with attempt 0" in again.stdout


def test_what_slurm_decides_is_no_failure_that_a_program_forbids_to_follow(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.ends(STOPPED, "preempt", step=FORBID)
    assert job.requeues() == 1


@pytest.mark.parametrize(("outcome", "shows"), [(STOPPED, "timeout"), (STOPPED, "preempt"), (failed(7), "scancel")])
def test_a_reason_that_was_not_requested_does_not_requeue(tmp_path: Path, outcome: dict[str, Any], shows: str) -> None:
    job = Job(tmp_path, requeue_on=["node-fail"])
    job.ends(outcome, shows)
    assert job.requeues() == 0


def test_a_job_that_a_person_stopped_is_not_requeued(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.ends(STOPPED, "timeout", step="""echo '{"signal": 15, "patient": true}' >$run/attempt-0/stop.json""")
    assert job.requeues() == 0


def test_only_the_task_of_an_array_is_requeued(tmp_path: Path) -> None:
    """The last task's own id is the array's too, by which Slurm would requeue all of them."""
    job = Job(tmp_path)
    job.ends(failed(7), task="3")
    assert job.requeues() == 1


def test_a_job_that_slurm_requeues_is_not_requeued_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.ends(STOPPED, "requeued")
    assert job.requeues() == 0
    assert job.next_attempt() == {"again": "requeue", "cause": "slurm", "note": ""}


def test_a_job_is_requeued_at_most_max_requeues_times(tmp_path: Path) -> None:
    job = Job(tmp_path, max_requeues=2)
    for restarts in range(4):
        job.ends(failed(7), restarts=restarts)
    assert job.requeues() == 2
    next_attempt = job.next_attempt(attempt=2)
    assert (
        next_attempt is not None and next_attempt["again"] == "none" and "--max-requeues is 2" in next_attempt["note"]
    )


def test_a_requeue_that_slurm_refuses_is_recorded(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.ends(failed(7), refuses=1).returncode == 7
    next_attempt = job.next_attempt()
    assert (
        next_attempt is not None
        and next_attempt["again"] == "none"
        and "scontrol requeue failed" in next_attempt["note"]
    )


# -- when ----------------------------------------------------------------------------------------------------------

TERM = "kill -TERM $PPID; until [ -s $run/attempt-0/stop.json ]; do sleep 0.1; done"
REQUEUED = "until [ -s $SLURM_ASKED ]; do sleep 0.1; done"


def test_a_job_that_slurm_ends_is_requeued_before_sigkill(tmp_path: Path) -> None:
    """The step runs until the requeue was requested, which therefore did not wait for its end."""
    job = Job(tmp_path)
    job.ends(STOPPED, "timeout", step=f"{TERM}; {REQUEUED}")
    assert job.requeues() == 1


def test_a_time_limit_after_the_driver_s_end_does_not_requeue_a_success(tmp_path: Path) -> None:
    job = Job(tmp_path)
    status = """echo '{"driver": {"state": "ended", "exit_code": 0}}' >$run/attempt-0/status-0.json"""
    job.ends(SUCCEEDED, "timeout", step=f"{status}; {TERM}")
    assert job.requeues() == 0


# -- chains --------------------------------------------------------------------------------------------------------


def test_a_chain_continues_after_a_failure_and_ends_with_a_success(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=[], chain=3)
    assert job.ends(failed(1)).returncode == 1
    assert job.ends(SUCCEEDED, arguments=["2"]).returncode == 0
    rest = job.ends(failed(1), arguments=["3"])
    assert (rest.returncode, "nothing is left to do" in rest.stdout) == (0, True)
    assert sorted(name for name in os.listdir(job.run.root)) == ["attempt-0", "attempt-1"]
    assert job.next_attempt(0) == {"again": "chain", "cause": "exit=1", "note": ""}
    assert job.next_attempt(1) == {"again": "none", "cause": "", "note": ""}


def test_a_chain_ends_with_its_last_job(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=[], chain=2)
    job.ends(failed(1))
    job.ends(failed(2), arguments=["2"])
    assert job.next_attempt(1) == {"again": "none", "cause": "exit=2", "note": ""}


def test_a_chain_continues_after_a_time_limit_with_any_exit_code(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=[], chain=2)
    job.ends({**STOPPED, "exit_code": 0}, "timeout")
    assert job.next_attempt() == {"again": "chain", "cause": "timeout", "note": ""}
    assert job.ends(SUCCEEDED, arguments=["2"]).returncode == 0


def test_the_remaining_jobs_of_a_stopped_chain_end_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=[], chain=2)
    job.ends(STOPPED, step="""echo '{"signal": 15, "patient": true}' >$run/attempt-0/stop.json""")
    assert job.next_attempt() == {"again": "none", "cause": "", "note": ""}
    assert job.ends(failed(1), arguments=["2"]).returncode == 143
    assert os.listdir(job.run.root) == ["attempt-0"]


def test_a_job_of_a_chain_is_requeued_before_the_next_one_follows(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=["exit=7"], chain=2, max_requeues=1)
    job.ends(failed(7))
    assert job.next_attempt() == {"again": "requeue", "cause": "exit=7", "note": ""}
    job.ends(failed(7), restarts=1)
    next_attempt = job.next_attempt(1)
    assert next_attempt is not None and next_attempt["again"] == "chain" and "--max-requeues" in next_attempt["note"]


# -- the sbatch options -------------------------------------------------------------------------------------------


def test_a_job_without_requeues_and_chain_has_no_requeue_code() -> None:
    assert requeue_code(JobSpec(command=["true"])) == requeue_code(JobSpec(command=["true"], max_requeues=9))
    assert requeue_code(JobSpec(command=["true"])).functions == ""


def test_a_job_with_requeues_has_the_requeue_directive() -> None:
    asked = options(JobSpec(command=["true"], requeue_on=["timeout"]), "/r", "/w")
    assert "requeue" in asked and "no-kill" in asked
    assert "requeue" not in options(JobSpec(command=["true"]), "/r", "/w")


def test_slurm_may_requeue_after_a_node_failure_that_loses_the_job_script() -> None:
    asked = options(JobSpec(command=["true"], requeue_on=["node-fail"]), "/r", "/w")
    assert "requeue" in asked and "no-kill" not in asked


@pytest.mark.parametrize(("kind", "said"), [("local", "on one machine"), ("allocation", "inside an allocation")])
def test_a_chain_is_refused_without_sbatch(kind: str, said: str) -> None:
    with pytest.raises(Mistake, match=f"--chain 2: {said} no job is submitted"):
        check_requeue_options(JobSpec(command=["true"], chain=2), Target(kind, 1))
    check_requeue_options(JobSpec(command=["true"], requeue_on=["timeout"]), Target(kind, 1))


def test_requeue_on_and_no_requeue_exclude_each_other() -> None:
    with pytest.raises(Mistake, match="exclude each other"):
        check_requeue_options(
            JobSpec(command=["true"], requeue_on=["timeout"], sbatch={"no-requeue": None}), Target("sbatch", 1)
        )


# -- nodes that have failed ----------------------------------------------------------------------------------------

BAD = "echo n2,n5 >$run/attempt-$MUSTER_ATTEMPT/avoided-nodes"  # as the leader writes it


def test_nodes_that_have_failed_are_excluded_from_the_requeued_job(tmp_path: Path) -> None:
    job = Job(tmp_path)
    done = job.ends(failed(125, lost=True), step=BAD)
    assert job.requeues() == 1 and job.updates() == ["update JobId=77 ExcNodeList=n2,n5"]
    assert "muster: nodes that failed (n2,n5) are excluded from job 77" in done.stdout
    assert "are excluded from job 77" in Path(job.run.attempt(0).phases_log).read_text()


def test_they_are_excluded_from_the_next_job_of_a_chain_beside_those_that_the_user_excludes(tmp_path: Path) -> None:
    job = Job(tmp_path, requeue_on=(), chain=2)
    Path(job.run.submission).write_text('{"job_ids": ["77", "78"]}')
    job.ends(failed(125, lost=True), step=BAD)
    assert job.updates() == ["update JobId=78 ExcNodeList=n2,n5,n9"]
    job.ends(failed(125, lost=True), step=BAD, arguments=["2"])  # the last one
    assert len(job.updates()) == 1


def test_where_too_few_others_are_left_they_are_used_again_and_the_output_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOES_NOT_FIT", "Requested node configuration is not available")
    job = Job(tmp_path)
    done = job.ends(failed(125, lost=True), step=BAD)
    assert job.requeues() == 1 and job.updates() == []
    assert "could not be excluded from job 77, and may be used again: Requested node configuration" in done.stdout


@pytest.mark.parametrize("fields", [{"avoid_bad_nodes": False}, {}])
def test_nothing_is_excluded_without_bad_nodes_or_if_they_are_not_to_be_avoided(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    job = Job(tmp_path, **fields)
    job.ends(failed(125, lost=True), step=BAD if fields else "")
    assert job.requeues() == 1 and job.updates() == []
