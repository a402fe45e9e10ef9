"""Nodes that fail are avoided on a real Slurm: by the next attempt, the next job of a chain and the user's next run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand, begins_again
from tests.running import wait_for

from muster.rundir import RunPaths, read_json

LAB = {"nodes": 3}


def fails_on_n2(slurm: SlurmCommand) -> tuple[str, str]:
    """The option of a check that fails on n2 while there is a file."""
    broken = slurm.cwd / "broken"
    broken.touch()
    return "--health-check", f"if [ $SLURMD_NODENAME = n2 ] && [ -e {broken} ]; then echo 'GPU 3 is gone'; false; fi"


def hosts(slurm: SlurmCommand, run: Path, attempt: int = 0) -> list[str]:
    return Path(RunPaths(str(run)).attempt(attempt).hosts).read_text().split()


def test_a_node_that_fails_its_check_is_avoided_in_the_next_attempt_and_run_until_it_is_forgiven(
    slurm: SlurmCommand,
) -> None:
    check, memory = fails_on_n2(slurm), ("--node-memory", str(slurm.cwd / "memory"))
    process = slurm.start(*slurm.run_args(*check, *memory, "--requeue-on", "exit=125", "--", "true", nodes=2))
    first = wait_for("the run", slurm.run_dirs)[0]
    attempt = RunPaths(str(first)).attempt(0)
    wait_for("the decision", lambda: read_json(attempt.next_attempt))
    job_id = slurm.status()["job_id"]
    wait_for("the exclusion", lambda: slurm.job(job_id)["ExcNodeList"] == "n2")
    begins_again(slurm, job_id)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert (hosts(slurm, first), hosts(slurm, first, 1)) == (["n1", "n2"], ["n1", "n3"])
    (record,) = json.loads(Path(attempt.bad_nodes).read_text())
    assert (record["host"], record["kind"]) == ("n2", "check") and "GPU 3 is gone" in record["reason"]

    done = slurm(*slurm.run_args(*check, *memory, "--", "true", nodes=2))
    assert done.returncode == 0 and "nodes that have failed are not used: n2" in done.stderr, done.stderr
    assert hosts(slurm, slurm.run_dirs()[-1]) == ["n1", "n3"]
    (slurm.cwd / "broken").unlink()
    all_nodes = slurm(*slurm.run_args(*check, *memory, "--", "true", nodes=3))
    assert all_nodes.returncode == 0 and "may be used: without n2 the job cannot run" in all_nodes.stderr

    assert "n2" in slurm("nodes", "--bad", *memory).stdout
    assert slurm("nodes", "forgive", "n2", *memory).returncode == 0
    again = slurm(*slurm.run_args(*check, *memory, "--", "true", nodes=2))
    assert again.returncode == 0 and "failed" not in again.stderr
    assert hosts(slurm, slurm.run_dirs()[-1]) == ["n1", "n2"]


@pytest.mark.slow
def test_a_node_that_fails_a_built_in_check_under_load_is_avoided_until_it_is_forgiven(slurm: SlurmCommand) -> None:
    """n2 loses a GPU when the driver works; until then all its checks pass."""
    loaded, programs = slurm.cwd / "loaded", slurm.cwd / "programs"
    programs.mkdir()
    listed = [f"GPU {n}: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-00000000000{n})" for n in range(2)]
    lost = f"[ $SLURMD_NODENAME = n2 ] && [ -e {loaded} ]"
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\necho '{listed[0]}'\n{lost} || echo '{listed[1]}'\n")
    (programs / "nvidia-smi").chmod(0o755)
    memory = ("--node-memory", str(slurm.cwd / "memory"))
    common = ("--setup", f"export PATH={programs}:$PATH SLURM_GPUS_ON_NODE=2", *memory)
    load = f"[ $MUSTER_ATTEMPT != 0 ] || {{ touch {loaded}; exit 7; }}"
    requeue = ("--requeue-on", "exit=7")
    process = slurm.start(*slurm.run_args(*common, *requeue, "--", "bash", "-c", load, nodes=2))
    first = wait_for("the run", slurm.run_dirs)[0]
    attempt = RunPaths(str(first)).attempt(0)
    wait_for("the decision", lambda: read_json(attempt.next_attempt))
    (record,) = json.loads(Path(attempt.bad_nodes).read_text())
    assert (record["host"], record["kind"]) == ("n2", "check") and "1 of 2 allocated GPUs" in record["reason"]
    job_id = slurm.status()["job_id"]
    wait_for("the exclusion", lambda: slurm.job(job_id)["ExcNodeList"] == "n2")
    begins_again(slurm, job_id)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert (hosts(slurm, first), hosts(slurm, first, 1)) == (["n1", "n2"], ["n1", "n3"])

    loaded.unlink()  # idle, the node passes its checks; it is remembered none the less
    done = slurm(*slurm.run_args(*common, "--", "true", nodes=2))
    assert done.returncode == 0 and "nodes that have failed are not used: n2" in done.stderr, done.stderr
    assert hosts(slurm, slurm.run_dirs()[-1]) == ["n1", "n3"]
    assert slurm("nodes", "forgive", "n2", *memory).returncode == 0
    again = slurm(*slurm.run_args(*common, "--", "true", nodes=2))
    assert again.returncode == 0, again.stderr
    assert hosts(slurm, slurm.run_dirs()[-1]) == ["n1", "n2"]


def test_a_node_that_fails_its_check_is_avoided_by_the_next_job_of_a_chain(slurm: SlurmCommand) -> None:
    done = slurm(*slurm.run_args(*fails_on_n2(slurm), "--chain", "2", "--", "true", nodes=2))
    assert done.returncode == 0, done.stderr
    run = slurm.run_dir()
    assert (hosts(slurm, run), hosts(slurm, run, 1)) == (["n1", "n2"], ["n1", "n3"])
    said = [path.read_text() for path in sorted(run.glob("slurm-*.out"))]
    assert "muster: nodes that failed (n2) are excluded from job" in said[0]


def test_where_no_other_node_is_left_a_bad_one_is_used_again_and_the_job_says_so(slurm: SlurmCommand) -> None:
    check = "if [ $SLURMD_NODENAME = n2 ] && [ $MUSTER_ATTEMPT = 0 ]; then echo 'GPU 3 is gone'; false; fi"
    done = slurm(*slurm.run_args("--health-check", check, "--chain", "2", "--", "true", nodes=3))
    assert done.returncode == 0, done.stderr
    said = "".join(path.read_text() for path in slurm.run_dir().glob("slurm-*.out"))
    assert "muster: nodes that failed (n2) could not be excluded from job" in said and "may be used again" in said


def test_nodes_of_a_cancelled_job_are_not_bad(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "bash", "-c", "echo ready; sleep 1000", nodes=3))
    run = slurm.wait_for_driver("ready")
    slurm.slurm("scancel", slurm.status()["job_id"])
    process.communicate(timeout=180)
    assert not list(run.glob("attempt-0/bad-nodes.json"))
