"""Messages of srun and the local launcher about ended tasks, and their interpretation."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.rundir.launcher_log import EarlyEnd, LauncherLog, cancellation, explaining_lines, parse, read


def parsed(*lines: str) -> list[tuple[str, int | None, str]]:
    return [(end.host, end.node_index, end.reason) for end in parse(lines)]


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        (
            "srun: error: n3: task 2: Exited with exit code 1",
            [("n3", 2, "its agent ended early: Exited with exit code 1")],
        ),
        ("srun: error: n3: task 2: Killed", [("n3", 2, "its agent ended early: Killed")]),
        ("srun: error: n3: task 2: Out Of Memory", [("n3", 2, "its agent ended early: Out Of Memory")]),
        (
            "srun: error: gpu-a.site: task 11: Segmentation fault (core dumped)",
            [("gpu-a.site", 11, "its agent ended early: Segmentation fault (core dumped)")],
        ),
        (
            "step: error: node-0: task 0: Exited with exit code 9",
            [("node-0", 0, "its agent ended early: Exited with exit code 9")],
        ),
        ("srun: error: Node failure on n3", [("n3", None, "Slurm reports that the node failed")]),
        (
            "srun: error: Task launch for StepId=12.0 failed on node n3: Communication connection failure",
            [("n3", None, "Slurm could not start its agent: Communication connection failure")],
        ),
    ],
)
def test_an_ended_task_is_parsed(line: str, ends: list[tuple[str, int | None, str]]) -> None:
    assert parsed(line) == ends


@pytest.mark.parametrize(
    "line",
    [
        "",
        "srun: job 12 queued and waiting for resources",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: Unable to create step for job 12: Invalid generic resource (gres) specification",
        "slurmstepd-n3: error: *** STEP 12.0 ON n3 CANCELLED AT 2026-01-01T00:00:00 ***",
        "the driver printed: srun: error: n3: task 2: Exited with exit code 1",
        "srun: error: n3: task : Exited with exit code 1",
    ],
)
def test_other_lines_are_not_taken_for_ended_tasks(line: str) -> None:
    assert parsed(line) == []


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(121, "cannot see the run directory"), (122, "--setup failed"), (127, "no Python interpreter")],
)
def test_the_prelude_s_exit_codes_have_a_meaning_without_its_message(code: int, meaning: str) -> None:
    ((host, node_index, reason),) = parsed(f"srun: error: n3: task 2: Exited with exit code {code}")
    assert (host, node_index) == ("n3", 2)
    assert reason.startswith(meaning)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_prelude_s_message_is_the_reason_whichever_came_first(order: tuple[int, int]) -> None:
    lines = ["srun: error: n3: task 2: Exited with exit code 121", "muster: n3: cannot see /lustre/runs/r"]
    assert parsed(*(lines[index] for index in order)) == [("n3", 2, "cannot see /lustre/runs/r")]


def test_the_message_of_one_node_is_not_another_s_reason() -> None:
    lines = ["muster: n1: --setup failed with code 3", "srun: error: n2: task 1: Killed"]
    assert parsed(*lines) == [("n2", 1, "its agent ended early: Killed")]


@pytest.mark.parametrize(
    ("hosts", "tasks", "expected"),
    [
        ("n[1-2]", "tasks 0-1", [("n1", 0), ("n2", 1)]),
        ("n[1-2,5]", "tasks 0-1,4", [("n1", 0), ("n2", 1), ("n5", 4)]),
        ("n[08-11]", "tasks 7-10", [("n08", 7), ("n09", 8), ("n10", 9), ("n11", 10)]),
        ("a1,b[2-3],c", "tasks 0,2-4", [("a1", 0), ("b2", 2), ("b3", 3), ("c", 4)]),
        ("r[1-2]n[1-2]", "tasks 0-3", [("r1n1", 0), ("r1n2", 1), ("r2n1", 2), ("r2n2", 3)]),
    ],
)
def test_hosts_and_tasks_folded_into_one_line_are_expanded(
    hosts: str, tasks: str, expected: list[tuple[str, int]]
) -> None:
    ends = parsed(f"srun: error: {hosts}: {tasks}: Exited with exit code 9")
    assert [(host, node_index) for host, node_index, _ in ends] == expected


def test_ranks_are_right_even_when_the_hosts_cannot_be_expanded() -> None:
    ends = parsed("srun: error: n[x-y]: tasks 0-2: Killed")
    assert [node_index for _, node_index, _ in ends] == [0, 1, 2]


def test_each_of_several_folded_hosts_keeps_its_message() -> None:
    lines = [
        "muster: n2: --setup failed with code 3",
        "srun: error: n[1-2]: tasks 0-1: Exited with exit code 122",
    ]
    assert parsed(*lines) == [("n1", 0, "--setup failed"), ("n2", 1, "--setup failed with code 3")]


def test_each_of_several_failed_nodes_is_named() -> None:
    assert [host for host, _, _ in parsed("srun: error: Node failure on n[3-4]")] == ["n3", "n4"]


# -- following the file -----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.log"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_missing_log_has_no_ends(path: Path) -> None:
    assert LauncherLog(str(path)).poll() == []
    assert read(str(path)) == []


def test_an_end_is_returned_once_by_the_poll_after_it_was_seen(path: Path) -> None:
    log = LauncherLog(str(path))
    append(path, "srun: error: n3: task 2: Killed\n")
    assert log.poll() == []
    assert log.poll() == [EarlyEnd("n3", 2, "its agent ended early: Killed")]
    assert log.poll() == []


def test_a_message_that_comes_a_little_later_is_still_the_reason(path: Path) -> None:
    log = LauncherLog(str(path))
    append(path, "srun: error: n3: task 2: Exited with exit code 121\n")
    assert log.poll() == []
    append(path, "muster: n3: cannot see /lustre/runs/r\n")
    assert log.poll() == [EarlyEnd("n3", 2, "cannot see /lustre/runs/r")]
    assert log.poll() == []


def test_a_half_written_end_is_returned_when_it_is_complete(path: Path) -> None:
    log = LauncherLog(str(path))
    append(path, "srun: error: n3: task 2: Exited with ex")
    assert log.poll() == []
    append(path, "it code 9\n")
    assert log.poll() == [EarlyEnd("n3", 2, "its agent ended early: Exited with exit code 9")]
    assert log.poll() == []


def test_later_ends_are_returned_later(path: Path) -> None:
    log = LauncherLog(str(path))
    append(path, "srun: error: n1: task 0: Killed\n")
    log.poll()
    append(path, "srun: error: n2: task 1: Killed\nsrun: error: Node failure on n4\n")
    assert [end.host for end in log.poll()] == ["n1"]
    assert [(end.host, end.node_index) for end in log.poll()] == [("n2", 1), ("n4", None)]
    assert log.poll() == []


def test_bytes_that_are_no_text_do_not_hide_an_end(path: Path) -> None:
    path.write_bytes(b"\xff\xfe garbage\nsrun: error: n3: task 2: Killed\n")
    assert [end.node_index for end in read(str(path))] == [2]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["ch-run[71]: error: can't stat: /x: No such file"], "can't stat: /x: No such file"),
        (["FATAL:   could not open image /x.sif: no such file"], "could not open image /x.sif: no such file"),
        (
            [
                "slurmstepd: error: pyxis: failed to import docker image",
                "slurmstepd: error: pyxis:     [INFO] Querying registry",
                "slurmstepd: error: pyxis:     [ERROR] URL https://registry returned error code: 404",
                "slurmstepd: error: pyxis: couldn't start container",
            ],
            "[ERROR] URL https://registry returned error code: 404",
        ),
    ],
)
def test_a_container_that_does_not_start_has_its_runtime_s_error_as_reason(said: list[str], reason: str) -> None:
    end = "srun: error: n3: task 2: Exited with exit code 1"
    told = f"its container did not start: {reason}: Exited with exit code 1"
    assert parse([*said, end]) == parse([end, *said]) == [EarlyEnd("n3", 2, told)]


def test_in_a_hetjob_the_rank_comes_from_the_host_not_from_the_task_s_number() -> None:
    hosts = ["n1", "n2", "n3", "n4"]  # srun counts the tasks of n3 and n4, the second group, from 0
    ends = parse(["srun: error: n[3-4]: tasks 0-1: Killed", "srun: error: n2: task 1: Killed"], hosts)
    assert [(end.host, end.node_index) for end in ends] == [("n3", 2), ("n4", 3), ("n2", 1)]


def test_lines_that_every_step_may_print_explain_nothing() -> None:
    lines = [
        "srun: cluster configuration lacks support for cpu binding",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: launch/slurm: launch_p_step_launch: StepId=2.0 aborted before step completely launched.",
        "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
        "srun: forcing job termination",
    ]
    assert explaining_lines([*lines, "srun: error: Slurm job 1 has expired"]) == [
        "srun: error: Slurm job 1 has expired"
    ]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "time limit",
        ),
        ("slurmstepd: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***", "preemption"),
        ("slurmstepd: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", ""),
        ("srun: error: n1: task 0: Terminated", None),
    ],
)
def test_slurm_s_cause_of_a_signal_is_read(tmp_path: Path, line: str, cause: str | None) -> None:
    (tmp_path / "steps.log").write_text(f"srun: something\n{line}\n")
    assert cancellation(str(tmp_path / "steps.log")) == cause


def test_a_launcher_log_that_is_missing_has_no_cause(tmp_path: Path) -> None:
    assert cancellation(str(tmp_path / "none")) is None


def test_code_120_blames_the_container_or_the_filesystem_since_python_uses_it_too() -> None:
    (end,) = parse(["srun: error: n3: task 2: Exited with exit code 120"])
    assert "container" in end.reason and "filesystem" in end.reason
