"""One task per virtual node, and ended tasks reported as srun does."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from muster.launch import local_launcher
from muster.launch.local_launcher import HOST_VARIABLE, RANK_VARIABLE, host_name
from muster.rundir.launcher_log import EarlyEnd, parse

DEADLINE_S = 120.0


def start(nodes: int, script: str) -> subprocess.Popen[str]:
    argv = [sys.executable, local_launcher.__file__, str(nodes), "bash", "-c", script]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_each_task_has_its_number_and_host_and_the_highest_code_is_returned() -> None:
    process = start(3, f'echo "${RANK_VARIABLE} ${HOST_VARIABLE}"; exit $(({RANK_VARIABLE} * 3))')
    out, err = process.communicate(timeout=DEADLINE_S)
    assert sorted(out.splitlines()) == [f"{number} {host_name(number)}" for number in range(3)]
    assert process.returncode == 6
    assert sorted(err.splitlines()) == [
        "step: error: node-1: task 1: Exited with exit code 3",
        "step: error: node-2: task 2: Exited with exit code 6",
    ]


def test_ended_tasks_are_read_from_its_messages_as_from_those_of_srun() -> None:
    process = start(2, f"if [ ${RANK_VARIABLE} = 1 ]; then kill -9 $$; fi; exit 121")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 137
    ends = sorted(parse(err.splitlines()), key=lambda end: end.node_index or 0)
    assert [(end.host, end.node_index) for end in ends] == [("node-0", 0), ("node-1", 1)]
    assert "cannot see the run directory" in ends[0].reason
    assert ends[1] == EarlyEnd("node-1", 1, "its agent ended early: The task was ended by SIGKILL")


@pytest.mark.parametrize("started", [1, 5])
def test_sigterm_of_the_job_script_ends_all_tasks_also_while_they_are_started(started: int) -> None:
    process = start(5, "echo ready; exec sleep 1000")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(started)] == ["ready\n"] * started
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143 and err.count("step: error: ") == 5
