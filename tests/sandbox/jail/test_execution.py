"""An execution: it waits for one job, runs it with its limits and files, and has nothing of its worker."""

from __future__ import annotations

import base64
import json
import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox import forked

from muster.sandbox.jail import execution, wire
from muster.sandbox.jail.landlock import Ruleset

SHOW_STATE = """
import os, signal, sys
fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
print(os.getsid(0) == os.getpid(), [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")], sys.stdin.read())
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.nice(0) >= 5)
"""


def run(job: dict[str, Any] | None, stdin: bytes = b"", where: Path = Path("/")) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of an execution that gets this job, or none."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (out, child_out), (err, child_err) = os.pipe(), os.pipe()

    def main() -> None:
        os.chdir(where)
        ours.close()
        execution.main([theirs.fileno(), child_out, child_err], Ruleset(files=False, tcp=False, scopes=False))

    pid = forked.start(main)
    theirs.close()
    for fd in (child_out, child_err):
        os.close(fd)
    if job is not None:
        wire.send_job(ours, job, stdin)
    ours.close()
    texts = []
    for fd in (out, err):
        with os.fdopen(fd) as file:
            texts.append(file.read())
    return forked.exit_code(pid), *texts


def test_a_python_program_is_run_in_this_interpreter() -> None:
    assert run({"do": "python", "code": "import sys; print(input()); sys.exit(3)"}, b"hi\n") == (3, "hi\n", "")


def test_a_program_has_its_standard_streams_and_a_session_of_its_own() -> None:
    code, stdout, stderr = run({"do": "python", "code": SHOW_STATE}, b"input")
    assert (code, stdout, stderr) == (0, "True [0, 1, 2] input\nTrue True\n", "")


def test_without_input_a_program_reads_nothing() -> None:
    assert run({"do": "python", "code": "import sys; print(repr(sys.stdin.read()))"})[1] == "''\n"


def test_another_program_is_executed_with_the_signals_of_a_new_process() -> None:
    shown = run({"do": "exec", "argv": ["/bin/bash", "-c", "cat; trap -p; exit 7"]}, b"in")
    assert shown == (7, "in", "")
    code, _, stderr = run({"do": "exec", "argv": ["/no/such/program"]})
    assert code == execution.CANNOT_START and "No such file or directory" in stderr


def test_an_execution_that_gets_no_job_exits() -> None:
    assert run(None) == (0, "", "")


def test_files_are_there_before_the_program_runs(tmp_path: Path) -> None:
    job = {
        "do": "python",
        "code": "print(open('in/a', 'rb').read(), open('b').read())",
        "files": {"in/a": base64.b64encode(b"\xff").decode()},
        "texts": {"b": "grüße"},
    }
    assert run(job, where=tmp_path) == (0, "b'\\xff' grüße\n", "")


def test_a_variable_of_a_job_is_set_unless_the_operator_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_OPERATOR", "operator")
    job = {"do": "exec", "argv": ["/bin/bash", "-c", "echo $OF_OPERATOR $OF_JOB"]}
    assert run({**job, "env": {"OF_OPERATOR": "job", "OF_JOB": "job"}})[1] == "operator job\n"


def test_a_python_program_can_be_a_file(tmp_path: Path) -> None:
    code = "import sys; print(__file__, sys.argv, sys.path[0]); assert open(__file__).read().startswith('import sys')"
    shown = run({"do": "python", "code": code, "file": "main.py"}, where=tmp_path)
    name = str(tmp_path / "main.py")
    assert shown == (0, f"{name} {[name]} {tmp_path}\n", "")


def test_the_cells_of_a_notebook_are_run(tmp_path: Path) -> None:
    job = {"do": "notebook", "cells": ["x = 41", "x + 1"], "backend": "repl", "cell_timeout": 0}
    code, stdout, _ = run(job, where=tmp_path)
    assert code == 0 and json.loads(stdout)[1]["display"] == [{"text/plain": "42"}]


def test_files_are_fetched_and_missing_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"\xff\x00")
    code, stdout, _ = run({"do": "fetch", "names": ["made", "missing", "."]}, where=tmp_path)
    assert code == 0
    assert {name: base64.b64decode(data) for name, data in json.loads(stdout).items()} == {"made": b"\xff\x00"}


@pytest.mark.parametrize(
    ("limits", "limit", "value"),
    [
        ({"memory_mb": 9000}, "RLIMIT_DATA", (9000 << 20, 9000 << 20)),
        ({"cpu_s": 9}, "RLIMIT_CPU", (9, 10)),
        ({"processes_of_user": 900}, "RLIMIT_NPROC", (900, 900)),
    ],
)
def test_a_job_lowers_limits(limits: dict[str, int], limit: str, value: tuple[int, int]) -> None:
    code = f"import resource; print(resource.getrlimit(resource.{limit}))"
    assert run({"do": "python", "code": code, "limits": limits})[1] == f"{value}\n"


def test_the_limit_of_private_memory_is_final_also_for_a_language_that_reserves_memory() -> None:
    def limits_after(reserves_memory: bool) -> list[int]:
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 9 << 30))
        execution.limit_data(reserves_memory)
        return list(resource.getrlimit(resource.RLIMIT_DATA))

    assert forked.value_of(lambda: limits_after(False)) == [4 << 30] * 2
    assert forked.value_of(lambda: limits_after(True)) == [9 << 30] * 2


def test_a_job_that_cannot_be_run_is_told_on_stderr() -> None:
    code, stdout, stderr = run({"do": "python", "code": "print(1)", "files": {"/dev/null/file": ""}})
    assert (code, stdout) == (execution.CANNOT_START, "") and stderr.startswith("sandbox: ")
