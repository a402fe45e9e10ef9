"""`muster doctor` on one machine, without Slurm."""

from __future__ import annotations

import json
import os
import resource
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.running import MusterCommand


def doctor(muster: MusterCommand, *args: str, **popen: Any) -> tuple[int, dict[str, Any], str]:
    """The command's exit code, its JSON and the states by check."""
    process = muster.start("doctor", "--backend", "local", "--no-ray", "--python", muster.python, *args, **popen)
    out, err = process.communicate(timeout=180)
    assert out, err
    report = json.loads(out)
    return process.returncode, report, err


def states(report: dict[str, Any]) -> dict[str, str]:
    return {check["check"]: check["state"] for check in report["checks"]}


def verdict(report: dict[str, Any], name: str) -> dict[str, Any]:
    (only,) = [check for check in report["checks"] if check["check"] == name]
    return dict(only)


def test_on_one_machine_what_applies_is_checked_and_the_rest_skipped(muster: MusterCommand) -> None:
    code, report, _ = doctor(muster, "--json")
    assert code == 0, report
    found = states(report)
    assert [name for name, state in found.items() if state == "fail"] == []
    assert {name for name, state in found.items() if state == "skip"} - {"containers"} == {
        "slurm",
        "partition",
        "file-visibility",
        "clocks",
        "ray",
    }
    assert found["shared-directory"] == found["python"] == found["ports"] == "pass"
    assert (report["format"], report["complete"], report["where"], report["slurm"]) == (1, True, "machine", None)
    assert list(report["nodes"]) == [os.uname().nodename]
    assert not muster.run_dirs() and not (muster.cwd / "muster-runs").exists()


def test_the_table_has_a_line_for_each_check_and_what_to_do(muster: MusterCommand) -> None:
    done = muster("doctor", "--backend", "local", "--no-ray", "--setup", "ulimit -n 512")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["result", "check"]
    (at,) = [number for number, line in enumerate(lines) if line.startswith("warn    open-files")]
    assert "at most 512" in lines[at]
    assert lines[at + 1].strip().startswith("-> raise LimitNOFILE")
    assert "1 warn" in lines[-1]


def test_a_low_limit_of_open_files_is_a_warning(muster: MusterCommand) -> None:
    limit = (600, 600)
    code, report, _ = doctor(muster, "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit))
    assert code == 0
    assert verdict(report, "open-files")["state"] == "warn"
    assert "600" in verdict(report, "open-files")["what"]


def test_a_runs_directory_that_cannot_be_made_is_a_failure(muster: MusterCommand) -> None:
    (muster.cwd / "file").touch()
    code, report, _ = doctor(muster, "--json", "--runs-dir", "file/runs")
    assert code == 1
    assert verdict(report, "shared-directory")["state"] == "fail"
    assert "--runs-dir" in verdict(report, "shared-directory")["advice"]


def test_a_pinned_port_that_is_taken_is_a_failure(muster: MusterCommand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = min(taken.getsockname()[1], 64536)
        code, report, _ = doctor(muster, "--json", "--port-base", str(port))
    assert code == 1
    assert verdict(report, "ports")["state"] == "fail"


@pytest.mark.ray
def test_a_python_without_ray_fails_with_a_remedy(muster: MusterCommand, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(muster.python)} -S "$@"\n')
    bare.chmod(0o755)
    done = muster("doctor", "--backend", "local", "--python", str(bare), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert "No module named 'ray'" in verdict(report, "ray")["what"]
    assert "--python" in verdict(report, "ray")["advice"]
    assert states(report)["python"] == "pass"


def test_the_values_of_env_reach_the_jobs_interpreter(muster: MusterCommand, tmp_path: Path) -> None:
    spy = tmp_path / "spy"
    spy.write_text(
        f'#!/bin/sh\necho "got $GIVEN" >>{shlex.quote(str(tmp_path))}/told\nexec {shlex.quote(muster.python)} "$@"\n'
    )
    spy.chmod(0o755)
    doctor(muster, "--json", "--python", str(spy), "--env", "GIVEN=value")
    assert "got value\n" in (tmp_path / "told").read_text()


def test_the_jobs_own_flags_and_job_file_are_taken(muster: MusterCommand) -> None:
    (muster.cwd / "job.yaml").write_text("runs_dir: elsewhere\nray: false\n")
    done = muster("doctor", "--backend", "local", "-f", "job.yaml", "--json", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert f"{muster.cwd}/elsewhere " in verdict(json.loads(done.stdout), "shared-directory")["what"]
    done = muster("doctor", "--nodez", "3")
    assert done.returncode == 2 and "did you mean --nodes" in done.stderr
