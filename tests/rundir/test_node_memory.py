"""What is remembered of nodes, in a run and beyond."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from muster.rundir import RunPaths
from muster.rundir.node_evidence import Evidence
from muster.rundir.node_memory import KEPT_S, NodeMemory, record_attempt, run_evidence


def evidence(host: str, run: str = "r-1", attempt: int = 0, when: float | None = None) -> Evidence:
    return Evidence(host, "lost", "no heartbeat", time.time() - 1 if when is None else when, run, attempt)


def attempt_with(run: RunPaths, number: int, *failed: str) -> None:
    """Write the events of an attempt on four nodes, in which these have failed."""
    attempt = run.attempt(number)
    os.makedirs(attempt.root)
    Path(attempt.hosts).write_text("n0\nn1\nn2\nn3\n")
    lines = [
        {"time": time.time(), "event": "failure", "host": host, "phase": "running", "reason": "gone"} for host in failed
    ]
    Path(attempt.events(0)).write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"torn')


def test_an_attempt_records_its_evidence_and_what_the_next_one_avoids(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path))
    attempt_with(run, 0, "n1")
    assert [one.host for one in record_attempt(run, run.attempt(0), gang=False)] == ["n1"]
    assert Path(run.attempt(0).avoided_nodes).read_text() == "n1\n"
    attempt_with(run, 1, "n3")
    assert [one.attempt for one in record_attempt(run, run.attempt(1), gang=False)] == [1]
    assert Path(run.attempt(1).avoided_nodes).read_text() == "n1,n3\n"
    assert [one.host for one in run_evidence(run)] == ["n1", "n3"]


def test_an_attempt_without_failures_records_nothing(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path))
    attempt_with(run, 0)
    assert record_attempt(run, run.attempt(0), gang=False) == [] == run_evidence(run)
    assert not os.path.exists(run.attempt(0).bad_nodes) and not os.path.exists(run.attempt(0).avoided_nodes)


def test_a_memory_has_the_evidence_of_all_runs(tmp_path: Path) -> None:
    memory = NodeMemory(str(tmp_path / "memory"))
    assert memory.evidence() == []
    first, second = evidence("n1"), evidence("n1", run="r-2")
    memory.remember([first])
    memory.remember([second])
    memory.remember([second])  # an attempt that is recorded twice counts once
    assert sorted(memory.evidence(), key=lambda one: one.run) == [first, second]


def test_forgiven_evidence_does_not_count_but_later_evidence_does(tmp_path: Path) -> None:
    memory = NodeMemory(str(tmp_path))
    memory.remember([evidence("n1"), evidence("n2")])
    memory.forgive(["n1"])
    assert [one.host for one in memory.evidence()] == ["n2"]
    memory.remember([evidence("n1", run="r-2", when=time.time() + 1)])
    assert [one.host for one in memory.evidence()] == ["n1", "n2"]


def test_old_files_are_removed_and_foreign_ones_ignored(tmp_path: Path) -> None:
    memory = NodeMemory(str(tmp_path))
    memory.remember([evidence("n1")])
    (old,) = tmp_path.iterdir()
    os.utime(old, (0, time.time() - KEPT_S - 60))
    (tmp_path / "n2.r.json").write_text("no json")
    (tmp_path / "README").write_text("")
    assert memory.evidence() == [] and not old.exists()


def test_other_users_can_read_the_records(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        memory = NodeMemory(str(tmp_path))
        memory.remember([evidence("n1")])
        memory.forgive(["n1"])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_host_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    memory = NodeMemory(str(tmp_path / "memory"))
    memory.remember([evidence("../n1")])
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["memory"]
