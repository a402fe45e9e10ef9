"""The facts that the probe collects on a node, and that it needs no other modules there."""

from __future__ import annotations

import ast
import json
import os
import resource
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doctor.probe_config import probe_config

import muster.doctor.node
from muster.doctor.node import probe
from muster.doctor.node.wire import reports_in
from muster.doctor.probe_runner import bash_argv

MODULES = sorted(Path(muster.doctor.node.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_the_nodes_side_is_valid_on_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    ours = {name for name in names if name and name.startswith("muster.")}
    shared = ("muster.ports.blocks", "muster.ports.ranges", "muster.rundir.exclusive", "muster.rundir.filesystem_type")
    assert all(name.startswith("muster.doctor.node.") or name in shared for name in ours)
    assert {str(name).partition(".")[0] for name in names - ours} <= sys.stdlib_module_names


def test_the_probe_needs_no_file_of_ours_and_no_package(tmp_path: Path) -> None:
    """Run as a node would, in a Python that sees neither Muster nor site packages."""
    words = bash_argv(probe_config(), "echo noise; export FROM_SETUP=1", inside_step=False)
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=180, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    (report,) = reports_in(done.stdout).values()
    assert report["python"]["version"] == sys.version.split()[0]
    assert report["limits"]["nofile"] and report["shm"]["size"]
    assert "noise" in done.stderr
    json.dumps(report)


def make_interpreter(path: Path, code: str) -> str:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("echo 'cannot load libpython' >&2; exit 3", "it ended with code 3: cannot load libpython"),
        ("exit 4", "it ended with code 4"),
        ("echo not json", "it ended with code 0"),
    ],
)
def test_an_interpreter_that_gives_no_answer_is_reported_with_its_last_error(
    tmp_path: Path, code: str, error: str
) -> None:
    python = make_interpreter(tmp_path / "python", code)
    assert probe.probe_python(probe_config(python=python)) == {"error": error}


def test_an_interpreter_that_does_not_exist_or_hangs_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = probe.probe_python(probe_config(python=str(tmp_path / "missing")))
    assert missing == {"error": "No such file or directory"}
    monkeypatch.setattr(probe, "PYTHON_TIMEOUT_S", 0.2)
    python = make_interpreter(tmp_path / "python", "exec sleep 1000")
    assert probe.probe_python(probe_config(python=python)) == {"error": "it did not answer within 0.2 s"}


def test_the_job_s_variables_reach_the_interpreter_and_its_own_output_is_not_taken_for_the_answer(
    tmp_path: Path,
) -> None:
    (tmp_path / "env.json").write_text(json.dumps({"GIVEN": "value"}))
    python = make_interpreter(tmp_path / "python", f'echo "got $GIVEN"; exec {shlex.quote(sys.executable)} "$@"')
    facts = probe.probe_python(probe_config(python=python, directory=str(tmp_path)))
    assert facts == {"version": sys.version.split()[0], "executable": sys.executable}
    (tmp_path / "seen").write_text("no")
    python = make_interpreter(tmp_path / "spy", f'echo "$GIVEN" >{shlex.quote(str(tmp_path))}/seen; exit 1')
    probe.probe_python(probe_config(python=python, directory=str(tmp_path)))
    assert (tmp_path / "seen").read_text() == "value\n"


def test_a_package_that_cannot_be_imported_is_reported_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise RuntimeError('no GPU driver')")
    python = make_interpreter(
        tmp_path / "python", f'PYTHONPATH={shlex.quote(str(tmp_path))} exec {shlex.quote(sys.executable)} -S "$@"'
    )
    assert probe.probe_python(probe_config(python=python, ray=True))["ray"] == {"error": "RuntimeError: no GPU driver"}
    (tmp_path / "ray.py").write_text("__version__ = '2.60.0'")
    ray = probe.probe_python(probe_config(python=python, ray=True))["ray"]
    assert (ray["version"], ray["path"]) == ("2.60.0", str(tmp_path / "ray.py")) and ray["import_s"] >= 0


def test_a_taken_port_is_reported_and_a_free_block_is_released_again() -> None:
    before = len(os.listdir("/proc/self/fd"))
    free = probe.probe_ports(probe_config())
    assert free["block"][0] < free["block"][1] and "error" not in free
    assert len(os.listdir("/proc/self/fd")) == before  # no socket or lock of the block is held
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = min(taken.getsockname()[1], 64536)
        assert str(port) in probe.probe_ports(probe_config(port_base=port))["error"]


def test_limits_are_numbers_or_null_for_unlimited() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = probe.probe_limits()
    assert limits["nofile"] == [None if n == resource.RLIM_INFINITY else n for n in (soft, hard)]
    assert limits.keys() == {"nofile", "nproc"} and "-1" not in json.dumps(limits)


def test_shared_memory_is_measured_in_bytes() -> None:
    found = os.statvfs("/dev/shm")
    assert probe.probe_shm()["size"] == found.f_blocks * found.f_frsize


def test_user_namespaces_are_tried_in_a_child_and_not_entered_by_this_process() -> None:
    before = os.readlink("/proc/self/ns/user")
    found = probe.probe_user_namespaces()
    assert found == {"works": True} or (found["works"] is False and found["error"])
    assert os.readlink("/proc/self/ns/user") == before
