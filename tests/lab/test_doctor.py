"""`muster doctor` checks a real Slurm of three nodes."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

LAB = {"nodes": 3}


def examine(slurm: SlurmCommand, *args: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    done = slurm("doctor", "--json", *(["--python", slurm.python] if "--python" not in args else []), *args)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def verdict(report: dict[str, Any], name: str) -> dict[str, Any]:
    (only,) = [check for check in report["checks"] if check["check"] == name]
    return dict(only)


def not_passed(report: dict[str, Any]) -> set[str]:
    return {check["check"] for check in report["checks"] if check["state"] != "pass"}


@pytest.mark.ray
def test_a_healthy_lab_passes_everything_by_one_short_job(slurm: SlurmCommand) -> None:
    before = slurm.slurm("squeue", "--noheader", "--states=all", "--format=%i").stdout.split()
    code, report = examine(slurm, "--nodes", "3", "-p", "long")
    assert code == 0, report
    assert not_passed(report) <= {"containers"}
    assert report["where"] == "job" and list(report["nodes"]) == ["n1", "n2", "n3"]
    assert set(report["nodes"]["n1"]["directory"]["met"]) == {"1", "2"}
    after = slurm.slurm("squeue", "--noheader", "--states=all", "--format=%i %P %l").stdout.splitlines()
    (job,) = [line.split() for line in after if line.split()[0] not in before]
    assert job[1:] == ["long", "10:00"]
    assert list(slurm.cwd.iterdir()) == []


def test_without_nodes_no_job_is_made(slurm: SlurmCommand) -> None:
    before = slurm.slurm("squeue", "--noheader", "--states=all", "--format=%i").stdout
    code, report = examine(slurm, "--no-ray")
    assert code == 0, report
    assert report["where"] == "machine" and len(report["nodes"]) == 1
    assert "3 of 3 nodes usable" in verdict(report, "partition")["what"]
    assert slurm.slurm("squeue", "--noheader", "--states=all", "--format=%i").stdout == before


def test_a_runs_directory_that_is_not_shared_fails_naming_the_nodes(slurm: SlurmCommand, tmp_path: Path) -> None:
    code, report = examine(slurm, "--nodes", "3", "--no-ray", "--runs-dir", str(tmp_path / "runs"))
    found = verdict(report, "shared-directory")
    assert (code, found["state"], found["nodes"]) == (1, "fail", ["n1", "n2", "n3"])
    assert "n[1-3] cannot see" in found["what"]
    assert "--runs-dir" in found["advice"]


def test_inside_an_allocation_all_its_nodes_are_examined_and_what_differs_is_named(slurm: SlurmCommand) -> None:
    """n2's python is another one, without Ray; n1 and n2 allow few open files."""
    python = slurm.cwd / "python"
    real = shlex.quote(slurm.python)
    python.write_text(f'#!/bin/sh\n[ "$(uname -n)" = n2 ] && exec {real} -S "$@"\nexec {real} "$@"\n')
    python.chmod(0o755)
    doctor = shlex.join([sys.executable, "-m", "muster.cli.main", "doctor", "--json", "--python", str(python)])
    done = slurm.slurm("salloc", "--nodes=2", "bash", "-c", f"{doctor} --setup 'ulimit -n 512'")
    report = json.loads(done.stdout)
    assert (done.returncode, report["where"], list(report["nodes"])) == (1, "allocation", ["n1", "n2"])
    assert (verdict(report, "ray")["state"], verdict(report, "ray")["nodes"]) == ("fail", ["n2"])
    assert "cannot be imported on n2: ModuleNotFoundError" in verdict(report, "ray")["what"]
    assert (verdict(report, "open-files")["state"], verdict(report, "open-files")["nodes"]) == ("warn", ["n1", "n2"])
    assert verdict(report, "shared-directory")["state"] == verdict(report, "python")["state"] == "pass"


def test_unequal_pythons_fail_by_node_and_a_failing_setup_too(slurm: SlurmCommand) -> None:
    python = slurm.cwd / "python"
    fake = '{"version": "3.9.2", "executable": "/usr/bin/python3"}'
    python.write_text(
        f"#!/bin/sh\nif [ $(uname -n) = n3 ] && [ $1 = -c ]; then echo '{fake}'; exit; fi\n"
        f'exec {shlex.quote(slurm.python)} "$@"\n'
    )
    python.chmod(0o755)
    code, report = examine(
        slurm, "--nodes", "3", "--no-ray", "--python", str(python), "--setup", '[ "$(uname -n)" != n1 ] || exit 4'
    )
    assert code == 1
    assert verdict(report, "nodes")["what"] == "--setup failed on n1 with code 4"
    found = verdict(report, "python")
    assert found["state"] == "fail" and "3.9.2 on n3" in found["what"]


def test_what_cannot_start_is_not_submitted_and_what_slurm_refuses_is_125(slurm: SlurmCommand) -> None:
    code, report = examine(slurm, "--nodes", "30", "--no-ray")
    assert (code, not_passed(report)) == (1, {"partition", "nodes"})
    assert "has 3 nodes, 30 are requested" in verdict(report, "partition")["what"]
    code, report = examine(slurm, "--nodes", "2", "--no-ray", "--nodelist", "n9")
    assert (code, report["complete"]) == (125, False)
    assert "Invalid node name" in verdict(report, "nodes")["what"]


def test_an_interrupt_while_it_waits_leaves_no_job_and_no_file(slurm: SlurmCommand) -> None:
    slurm.slurm("sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000")
    wait_for("the nodes to be taken", lambda: slurm.slurm("squeue", "--noheader", "--states=RUNNING").stdout)
    process = slurm.start("doctor", "--nodes", "3", "--no-ray", "--python", slurm.python)
    waiting = ["squeue", "--noheader", "--name=muster-doctor", "--format=%T"]
    wait_for("the doctor's job to wait", lambda: "PENDING" in slurm.slurm(*waiting).stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    wait_for("its job to be gone", lambda: not slurm.slurm(*waiting).stdout)
    assert list(slurm.cwd.iterdir()) == []


def test_a_run_whose_directory_nodes_have_of_their_own_is_warned_of_before(slurm: SlurmCommand, tmp_path: Path) -> None:
    done = slurm.run("--dry-run", "--runs-dir", "/tmp/runs", "--", "true", nodes=2)
    assert done.returncode == 0
    (line,) = warnings(done.stderr)
    assert line.startswith("muster: warning: the runs directory /tmp/runs is in /tmp") and "--runs-dir" in line
    assert warnings(slurm.run("--dry-run", "--", "true", nodes=2).stderr) == []


def warnings(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if not line.startswith("muster: dry run; would ")]
