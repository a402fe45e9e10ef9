"""Jobs start again on a real Slurm after time limits, preemption and lost nodes, by a requeue or as a chain."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest
from tests.lab.conftest import SlurmCommand, agent_on, begins_again
from tests.running import wait_for
from tests.views.timelines import adds_up, phases

from muster.rundir import RunPaths, read_json
from muster.views.record import RunReader
from muster.views.timeline import Timeline, build_timeline

LAB = {
    "nodes": 3,
    "kill_wait": 30,
    "extra_conf": (
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PartitionName=cancelled Nodes=n[1-3] PriorityTier=1 PreemptMode=CANCEL MaxTime=INFINITE State=UP",
        "PartitionName=requeued Nodes=n[1-3] PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP",
        "PartitionName=urgent Nodes=n[1-3] PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP",
    ),
}
ALL = ("--requeue-on", "timeout,preempt,node-fail,exit=7")
STARTED = "echo attempt $MUSTER_ATTEMPT resume $MUSTER_RESUME run $MUSTER_RUN_ID"
# The second attempt ends by itself; the first one waits for its signals, and says that it began when it handles them.
BEGIN = f"{STARTED}; [ $MUSTER_ATTEMPT = 1 ] && exit 5"
UNTIL_TERM = f"exec 3<> <(:); trap 'echo saving; exit 0' TERM; {BEGIN}; while :; do read -t 0.1 -u 3; done"
UNTIL_BOTH = (
    "exec 3<> <(:); got=; trap 'echo checkpoint; got+=u' USR2; trap 'echo saving; got+=t' TERM; "
    f"{BEGIN}; while [ ${{#got}} -lt 2 ]; do read -t 0.1 -u 3; done; exit 0"
)


def next_attempt(slurm: SlurmCommand, attempt: int = 0) -> Any:
    return read_json(RunPaths(str(slurm.run_dir())).attempt(attempt).next_attempt)


def seen(slurm: SlurmCommand) -> Timeline:
    """The timeline of the only run, which adds up over all of its attempts."""
    found = build_timeline(RunReader(RunPaths(str(slurm.run_dir()))).read())
    adds_up(found)
    return found


def started(slurm: SlurmCommand, *args: str, nodes: int = 1, **options: Any) -> tuple[subprocess.Popen[str], str]:
    """`muster run` whose driver is ready, and the id of its job."""
    process = slurm.start(*slurm.run_args(*args, nodes=nodes, **options))
    slurm.wait_for_driver("attempt 0 resume 0")
    return process, slurm.status()["job_id"]


def test_a_time_limit_comes_with_its_signal_and_the_job_begins_again(slurm: SlurmCommand) -> None:
    """Slurm looks at its limits every 30 s.

    Both signals come from the same look, in any order. With a limit that is far away at first, none is sent before the
    driver handles them.
    """
    limits = ("--time", "10", "--signal", "USR2@60")
    process, job_id = started(slurm, *limits, "--requeue-on", "timeout", "--", "bash", "-c", UNTIL_BOTH)
    wait_for("Slurm to take the limit", lambda: ends_now(slurm, job_id))
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 5, err
    run = slurm.run_dir().name
    first, *signals, second = out.splitlines()
    assert (first, second) == (f"attempt 0 resume 0 run {run}", f"attempt 1 resume 1 run {run}")
    assert sorted(signals) == ["checkpoint", "saving"]
    assert next_attempt(slurm)["cause"] == "timeout"
    assert "put back into the queue after timeout" in err


def ends_now(slurm: SlurmCommand, job_id: str) -> bool:
    """Whether Slurm takes this second as the job's end: it refuses one that has passed when the request arrives."""
    return slurm.slurm("scontrol", "update", f"jobid={job_id}", "endtime=now").returncode == 0


def test_a_job_preempted_by_cancelling_begins_again(slurm: SlurmCommand) -> None:
    process, job_id = started(slurm, *ALL, "-p", "cancelled", "--", "bash", "-c", UNTIL_TERM, nodes=3)
    slurm.slurm("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    wait_for("the decision", lambda: next_attempt(slurm))
    assert next_attempt(slurm) == {"again": "requeue", "cause": "preempt", "note": ""}
    wait_for("the run to be pending again", lambda: slurm.status()["state"] == "pending")
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, "attempt 1 resume 1" in out) == (5, True), err


def test_a_job_that_slurm_requeues_itself_is_not_requeued_twice(slurm: SlurmCommand) -> None:
    process, job_id = started(slurm, *ALL, "-p", "requeued", "--", "bash", "-c", UNTIL_TERM, nodes=3)
    slurm.slurm("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, "attempt 1 resume 1" in out) == (5, True), err
    assert next_attempt(slurm) == {"again": "requeue", "cause": "slurm", "note": ""}
    assert slurm.job(job_id)["Restarts"] == "1"


def test_an_exit_code_that_was_named_is_followed_by_another_attempt_as_often_as_asked(slurm: SlurmCommand) -> None:
    process = slurm.start(
        *slurm.run_args(*ALL, "--max-requeues", "1", "--", "bash", "-c", f"{STARTED}; exit 7", nodes=1)
    )
    wait_for("the decision", lambda: slurm.run_dirs() and next_attempt(slurm))  # the driver has ended at once
    job_id = slurm.status()["job_id"]
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 7, err
    assert len(out.splitlines()) == 2
    assert "not requeued after exit=7: it was started again 1 times" in slurm("status").stdout
    assert slurm.ended_job(job_id)["ExitCode"] == "7:0"


def test_a_lost_node_is_followed_by_another_attempt(slurm: SlurmCommand) -> None:
    process, job_id = started(slurm, "--requeue-on", "node-fail", "--", "bash", "-c", UNTIL_TERM, nodes=2)
    os.kill(agent_on(slurm, "n2"), signal.SIGKILL)
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, "attempt 1 resume 1" in out) == (5, True), err
    assert next_attempt(slurm)["cause"] == "node-fail"
    first, second = seen(slurm).attempts
    assert phases(first.nodes[1])[-1] == "lost"
    assert phases(second.nodes[1])[:2] == ["pending", "launching"] and second.start == first.end


def test_a_lost_batch_host_is_too_by_slurm_s_own_doing(slurm: SlurmCommand) -> None:
    """With it the job script is lost, which begins everything else again."""
    process, job_id = started(slurm, "--requeue-on", "node-fail", "--", "bash", "-c", UNTIL_TERM, nodes=2)
    slurm.lab.kill_node("n1")
    try:
        begins_again(slurm, job_id)
        out, err = process.communicate(timeout=180)
    finally:
        slurm.slurm("scancel", "--user=root")
        slurm.lab.heal("n1")
    assert (process.returncode, "attempt 1 resume 1" in out) == (5, True), err
    assert [attempt.number for attempt in seen(slurm).attempts] == [0, 1]  # though nobody recorded the first one's end


def test_a_requeued_job_that_waits_is_stopped_for_good(slurm: SlurmCommand) -> None:
    process, job_id = started(slurm, *ALL, "--", "bash", "-c", f"{STARTED}; exit 7")
    wait_for("the job to be pending again", lambda: slurm.job(job_id)["JobState"] == "PENDING")
    assert slurm.status()["state"] == "pending"
    assert "was cancelled before it began" in slurm("stop").stdout
    process.communicate(timeout=180)
    assert process.returncode == 143
    assert slurm.ended_job(job_id)["JobState"] == "CANCELLED"


GRACE = """
import os, signal, sys, threading
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init()
here = ray.remote(num_cpus=0)(lambda: ray.get_runtime_context().get_node_id())
alive = lambda: [node["NodeID"] for node in ray.nodes() if node["Alive"]]
work = lambda: {ray.get(here.options(scheduling_strategy=On(node, soft=False)).remote()) for node in alive()}
work()
term = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: term.set())
print("attempt", os.environ["MUSTER_ATTEMPT"], "resume", os.environ["MUSTER_RESUME"], flush=True)
term.wait()
print("worked on", len(work()), flush=True)
sys.exit(9)
"""


@pytest.mark.slow
@pytest.mark.ray
def test_after_scancel_the_driver_has_its_cluster_for_its_grace_and_the_job_is_over(slurm: SlurmCommand) -> None:
    (slurm.cwd / "grace.py").write_text(GRACE)
    process, job_id = started(slurm, *ALL, "--", "python", "grace.py", nodes=2, ray=True)
    slurm.slurm("scancel", job_id)
    out, err = process.communicate(timeout=180)
    assert "worked on 2" in out.splitlines(), err  # Ray may print errors of its own after it
    assert process.returncode == 9
    assert slurm.ended_job(job_id)["JobState"] == "CANCELLED"
    assert next_attempt(slurm)["again"] == "none"


def test_a_run_stopped_by_a_person_is_not_requeued(slurm: SlurmCommand) -> None:
    _, job_id = started(slurm, *ALL, "--", "bash", "-c", UNTIL_TERM.replace("exit 0", "exit 7"))
    assert "stopped by" in slurm("stop").stdout
    assert slurm.ended_job(job_id)["JobState"] == "FAILED"
    assert next_attempt(slurm)["again"] == "none"


def test_a_chain_ends_with_its_first_success(slurm: SlurmCommand) -> None:
    done = slurm.run("--chain", "3", "--", "bash", "-c", f"{STARTED}; [ $MUSTER_ATTEMPT = 1 ]", nodes=1)
    assert done.returncode == 0, done.stderr
    run = slurm.run_dir()
    assert done.stdout == f"attempt 0 resume 0 run {run.name}\nattempt 1 resume 1 run {run.name}\n"
    jobs = read_json(str(run / "submission.json"))["job_ids"]
    assert [slurm.ended_job(job)["ExitCode"] for job in jobs] == ["1:0", "0:0", "0:0"]
    assert sorted(path.name for path in run.glob("attempt-*")) == ["attempt-0", "attempt-1"]
    assert "nothing is left to do" in (run / f"slurm-{jobs[2]}.out").read_text()
    assert slurm("status", jobs[2]).stdout.startswith(f"{run.name}: succeeded")


def test_stopping_a_chain_ends_all_of_it(slurm: SlurmCommand) -> None:
    process, _ = started(slurm, "--chain", "3", "--", "bash", "-c", UNTIL_TERM)
    assert "stopped by" in slurm("stop").stdout
    process.communicate(timeout=180)
    jobs = read_json(str(slurm.run_dir() / "submission.json"))["job_ids"]
    assert [slurm.ended_job(job)["JobState"] for job in jobs] == ["COMPLETED", "CANCELLED", "CANCELLED"]
    assert not (slurm.run_dir() / "attempt-1").exists()
