"""How the probe gets onto the nodes, and its reports back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doctor.probe_config import probe_config

from muster.doctor import probe_runner
from muster.doctor.node.wire import reports_in
from muster.launch.slurm_directives import unset_step
from muster.spec import JobSpec


@pytest.mark.parametrize(("setup", "code"), [("exit 3", 3), ("exit", 255), ("false", 1)])
def test_a_setup_that_fails_is_reported_whether_or_not_it_ends_the_shell(tmp_path: Path, setup: str, code: int) -> None:
    config = probe_config(directory=str(tmp_path), timeouts={"canary": 0})
    words = probe_runner.bash_argv(config, setup, inside_step=False)
    done = subprocess.run(words, capture_output=True, text=True, timeout=180)
    (report,) = reports_in(done.stdout).values()
    assert report["setup_code"] == code
    assert (tmp_path / "absent-0").exists() == setup.startswith("exit")


def test_the_jobs_options_reach_srun_but_not_those_of_a_batch_job() -> None:
    spec = JobSpec(
        command=["true"],
        nodes=4,
        partition="gpu",
        time="10:00:00",
        gres="gpu:2",
        output="x.out",
        array="0-3",
        sbatch={"mail-type": "END", "exclusive": "", "requeue": None},
    )
    words = probe_runner.srun_argv(spec, 4, False, {"SBATCH_ACCOUNT": "phys", "SBATCH_PARTITION": "other"})
    assert {"--nodes=4", "--ntasks=4", "--partition=gpu", "--gres=gpu:2", "--account=phys", "--mail-type=END"} <= set(
        words
    )
    assert "--time=10" in words
    assert not any(word.startswith(("--output", "--array", "--requeue", "--exclusive", "--overlap")) for word in words)


def test_inside_an_allocation_the_step_is_beside_what_runs_there() -> None:
    words = probe_runner.srun_argv(JobSpec(command=["true"], partition="gpu"), 2, True, {})
    assert "--overlap" in words and "--partition=gpu" not in words
    env = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_CPU_BIND_TYPE": "x", "HOME": "/"}
    assert set(probe_runner.outside_step(env)) == {"SLURM_JOB_ID", "HOME"}


def test_sruns_progress_is_not_its_last_word() -> None:
    text = "srun: error: n2: task 1: Killed\nsrun: job 7 queued and waiting for resources\n"
    assert probe_runner.last_error(text) == "n2: task 1: Killed"
    assert probe_runner.last_error("") == ""


def test_the_probe_drops_the_variables_that_the_job_script_drops() -> None:
    """Except those that only matter to a submitted job: the user's clusters, and the form of srun's messages."""
    unset = unset_step()
    names = re.findall(r"(?<!!)\b(SLURM_[A-Z_]+)\b", unset)
    prefixed = [f"{prefix}_X" for prefix in re.findall(r"!(SLURM_[A-Z_]+)@", unset)]
    assert len(names) > 10 and len(prefixed) == 3
    kept = probe_runner.outside_step(dict.fromkeys([*names, *prefixed], "1"))
    assert set(kept) == {"SLURM_CLUSTERS", "SLURM_SRUN_REDUCE_TASK_EXIT_MSG"}


def test_options_from_the_environment_are_those_of_sbatch_and_the_job_removes_them() -> None:
    env = {"SBATCH_QOS": "high", "SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "5", "SBATCH_ACCOUNT": ""}
    assert probe_runner.requests(JobSpec(command=["true"]), env) == {"qos": "high", "partition": "gpu"}
    spec = JobSpec(command=["true"], sbatch={"qos": ""}, partition="cpu")
    assert probe_runner.requests(spec, env) == {"partition": "cpu"}


@pytest.mark.parametrize("inside", [True, False])
def test_a_task_has_the_number_and_host_of_its_step(inside: bool) -> None:
    """Without a step the launcher's own variables do not count: they are those of a surrounding one."""
    words = probe_runner.bash_argv(probe_config(), "exit 3", inside_step=inside)
    env = {"PATH": os.environ["PATH"], "SLURM_PROCID": "5", "SLURMD_NODENAME": "n5"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, env=env)
    expected = {"host": "n5", "rank": 5} if inside else {"host": os.uname().nodename, "rank": 0}
    assert reports_in(done.stdout) == {expected["rank"]: {**expected, "setup_code": 3}}


def test_a_node_without_a_usable_python_reports_that_it_could_not_be_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho False\n")
    old.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(old))
    monkeypatch.setattr(probe_runner, "PRELUDE", probe_runner.PRELUDE.replace("python3 /usr/bin/python3", str(old)))
    config = probe_config(python=str(old), directory=str(tmp_path))
    words = probe_runner.bash_argv(config, "", inside_step=False)
    done = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert reports_in(done.stdout) == {0: {"host": os.uname().nodename, "rank": 0, "setup_code": 0}}
    assert (tmp_path / "absent-0").exists()


async def test_the_output_of_a_launch_is_its_reports_its_code_and_its_last_error(tmp_path: Path) -> None:
    script = "echo 'muster-doctor: 1 0 1 {\"host\": \"n1\"}'; pwd; echo 'srun: error: no such account' >&2; exit 7"
    output = await probe_runner.launch(["bash", "-c", script], str(tmp_path), None)
    assert output == probe_runner.ProbeOutput(7, {1: {"host": "n1"}}, "no such account")
