"""The probe on the nodes: the shared directory, the encoding of reports, and that it needs no other modules."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import muster.doctor.node
from muster.doctor import probe_runner
from muster.doctor.node.mounts import filesystem_type
from muster.doctor.node.shared_fs_probe import CANARY, ProbeTimeouts, SharedFilesystemProbe, poll_interval
from muster.doctor.node.wire import report_lines, reports_in
from muster.spec import JobSpec

MODULES = sorted(Path(muster.doctor.node.__file__).parent.glob("*.py"))
SHORT = ProbeTimeouts(canary=0.1, others=0.3)
LONG = ProbeTimeouts(canary=30, others=30)


def meet(directory: Path, ranks: list[int], nodes: int, timeouts: ProbeTimeouts) -> dict[int, dict[str, Any]]:
    with ThreadPoolExecutor(nodes) as pool:
        parts = {
            rank: pool.submit(SharedFilesystemProbe(str(directory), rank, nodes, timeouts).run, "yes") for rank in ranks
        }
        return {rank: part.result() for rank, part in parts.items()}


def test_nodes_that_share_a_directory_meet_and_rank_0_measures_the_others(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    found = meet(tmp_path, [0, 1, 2], 3, LONG)
    assert [found[rank]["missed"] for rank in range(3)] == [[], [], []]
    assert set(found[0]["met"]) == {"1", "2"}
    for measured in found[0]["met"].values():
        # One clock: whatever it says, the difference lies within the error it claims.
        assert abs(measured["clock_s"]) <= measured["clock_error_s"]
        assert measured["clock_error_s"] <= measured["delay_s"]


def test_a_node_without_the_canary_reports_it(tmp_path: Path) -> None:
    assert meet(tmp_path, [0], 2, SHORT) == {0: {"seen": False}}
    (tmp_path / CANARY).write_text("of another directory")
    assert meet(tmp_path, [0], 2, SHORT) == {0: {"seen": False}}


def test_who_does_not_come_is_missed(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    found = meet(tmp_path, [0, 1], 3, ProbeTimeouts(canary=30, others=2))
    assert found[0]["missed"] == [2]
    assert set(found[0]["met"]) == {"1"}


def test_nodes_do_not_wait_for_an_absent_node(tmp_path: Path) -> None:
    (tmp_path / CANARY).write_text("yes")
    (tmp_path / "absent-0").touch()
    found = meet(tmp_path, [1], 2, ProbeTimeouts(canary=30, others=100_000))
    assert found[1]["missed"] == [0]


def test_many_nodes_look_more_seldom() -> None:
    assert poll_interval(2) == 0.01
    assert 64 / poll_interval(64) < 1000 and poll_interval(10_000) == 0.25


def test_reports_survive_the_launcher_that_mixes_lines() -> None:
    reports = {rank: {"host": f"n{rank}", "text": "é\n" * 1000} for rank in range(3)}
    lines = [line for rank, report in reports.items() for line in report_lines(rank, report)]
    assert max(map(len, lines)) < 1000
    assert reports_in("\n".join(["noise", *reversed(lines), "srun: noise"])) == reports
    assert set(reports_in("\n".join(lines[1:]))) == {1, 2}  # a report that is not whole is none


def test_the_innermost_mount_decides_and_the_last_of_two_on_one_place() -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "30 22 0:3 / /home rw shared:1 - nfs4 server:/home rw\n"
        "31 30 0:4 / /home/a\\040b rw - tmpfs tmpfs rw\n"
        "32 22 0:5 / /tmp rw - ext4 /dev/sdb rw\n"
        "33 22 0:6 / /tmp rw - tmpfs tmpfs rw\n"
    )
    paths = {"/homes": "ext4", "/home": "nfs4", "/home/ann": "nfs4", "/home/a b/c": "tmpfs", "/tmp/x": "tmpfs"}
    assert {path: filesystem_type(path, table) for path in paths} == paths


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_the_nodes_side_is_valid_on_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    ours = {name for name in names if name and name.startswith("muster.")}
    shared = ("muster.ports.blocks", "muster.ports.ranges")
    assert all(name.startswith("muster.doctor.node.") or name in shared for name in ours)
    assert {str(name).partition(".")[0] for name in names - ours} <= sys.stdlib_module_names


def test_the_probe_needs_no_file_of_ours_and_no_package(tmp_path: Path) -> None:
    """Run as a node would, in a Python that sees neither Muster nor site packages."""
    order = {
        "nodes": 1,
        "directory": None,
        "canary": "",
        "timeouts": {},
        "runs_dir": "/",
        "workdir": "/",
        "python": sys.executable,
        "ray": False,
        "port_base": None,
        "block_size": 100,
    }
    words = probe_runner.bash_argv(order, "echo noise; export FROM_SETUP=1", inside_step=False)
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=180, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    (report,) = reports_in(done.stdout).values()
    assert report["python"]["version"] == sys.version.split()[0]
    assert report["limits"]["nofile"] and report["shm"]["size"]
    assert "noise" in done.stderr
    json.dumps(report)


@pytest.mark.parametrize(("setup", "code"), [("exit 3", 3), ("exit", 255), ("false", 1)])
def test_a_setup_that_fails_is_reported_whether_or_not_it_ends_the_shell(tmp_path: Path, setup: str, code: int) -> None:
    order = {
        "nodes": 1,
        "directory": str(tmp_path),
        "canary": "",
        "timeouts": {"canary": 0},
        "runs_dir": "/",
        "workdir": "/",
        "python": sys.executable,
        "ray": False,
        "port_base": None,
        "block_size": 100,
    }
    words = probe_runner.bash_argv(order, setup, inside_step=False)
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
