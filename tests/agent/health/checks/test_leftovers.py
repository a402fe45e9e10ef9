"""Processes of other jobs."""

from __future__ import annotations

import os
import subprocess

from muster.agent.health.checks.finding import CheckedNode, Verdict
from muster.agent.health.checks.leftovers import check_leftovers, judge_processes

OWN, OTHER = b"A=1\0SLURM_JOB_ID=17\0", b"SLURM_JOB_ID=16\0B=2\0"


def test_only_processes_of_another_job_are_leftovers() -> None:
    found = judge_processes([(1, "bash", OWN), (2, "python", OTHER), (3, "systemd", b"")], "17")
    assert (found.verdict, found.reason) == (Verdict.FAILED, "processes of other jobs: python (2, job 16)")
    assert judge_processes([(1, "bash", OWN), (3, "systemd", b"")], "17").verdict is Verdict.PASSED


def test_many_leftovers_are_counted() -> None:
    assert judge_processes([(pid, "python", OTHER) for pid in range(7)], "17").reason.endswith(" and 2 more")


def test_a_process_of_another_job_is_found_on_this_machine() -> None:
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, "SLURM_JOB_ID": "tests-16"}) as process:
        try:
            found = check_leftovers(CheckedNode({"SLURM_JOB_ID": "17"}, "/tmp", "/tmp"), None)
        finally:
            process.kill()
    assert found.verdict is Verdict.FAILED
    assert check_leftovers(CheckedNode({}, "/tmp", "/tmp"), None).verdict is Verdict.SKIPPED
