"""The summary of a run as lines of text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.views.service_runs import read
from tests.views.synthetic import START, SyntheticRun, large_run

from muster.views.record import RunReader
from muster.views.summary import duration, summary


def test_the_summary_lists_the_critical_path_and_failures(tmp_path: Path) -> None:
    lines = summary(RunReader(large_run(tmp_path / "r", nodes=24).paths).read())
    assert "   4.0 s  Ray starting  Ray's head starts on gpu0000" in "\n".join(lines)
    assert any(line.startswith("failure in cycle 1") and "gpu0018" in line for line in lines)
    assert "    | Aborted" in lines
    assert "nodes: 2 lost, 22 gone" in lines


def test_nodes_that_have_not_arrived_are_named_in_few_words(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=5)
    run.tell("run", state="gathering")
    run.node(0, "arrived", 1.0)
    run.write("gathering")
    lines = summary(RunReader(run.paths, lambda: START + 60.0).read())
    assert "not arrived: gpu[0001-0004]" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.94, "59.9 s"), (60.0, "1 min 00.0 s"), (3599.0, "59 min 59.0 s"), (3661.0, "1 h 01 min 01 s")],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_first_lines_say_how_the_run_ended(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.ends(code=3)
    lines = summary(read(run))
    assert lines[:2] == ["r: failed (slurm, Slurm job 4711)", "  the driver exited with 3 (exit code 3)"]
    assert lines[2].startswith("  requested at ") and "so far" not in lines[2]
    (shares,) = [line for line in lines if line.startswith("node-seconds: ")]
    assert shares.startswith(f"node-seconds: {2 * (run.now - START - 30.0):.0f}, of which driver ")


def test_a_live_run_is_described_so_far(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.write("gathering")
    lines = summary(read(run, START + 60.0))
    assert lines[1].endswith(", so far 1 min 00.0 s")
    assert "1 min 00.0 s without a driver so far" in lines


def test_requests_of_programs_are_listed_with_their_times(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.tell("control", rank=1, host="n1", kind="exclude_node", reason="bad memory")
    run.ends()
    lines = summary(RunReader(run.paths).read())
    (line,) = [line for line in lines if line.startswith("requested after ")]
    assert line.endswith(": n1 exclude_node: bad memory")


def test_unreadable_events_and_a_full_disk_are_mentioned(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.lines += ["{", "[]"]
    run.write("gathering")
    assert "2 lines of the events could not be read: was the disk full for a while?" in summary(read(run))


def test_a_failure_is_listed_with_the_tail_of_its_log_without_secrets(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 2)
    run.brings_up()
    run.error = {"rank": 1, "host": "gpu0001", "phase": "ray", "reason": "it broke", "log_tail": []}
    run.ends(1)
    lines = summary(read(run), lambda attempt, node_index: ["HF_TOKEN=verysecret1", "\x1b[31mred"])
    assert lines[-3:] == [
        "failure: gpu0001 in phase ray: it broke",
        "    | HF_TOKEN=***",
        "    | red",
    ]
