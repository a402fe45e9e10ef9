"""The status file: its content, what is encoded again, and how often it is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.agent.job import Identity
from muster.agent.leader import status_publisher
from muster.agent.leader.status_publisher import STATUS_COST_FACTOR, StatusPublisher
from muster.lifecycle import events as m
from muster.lifecycle.config import RunConfig
from muster.lifecycle.state_machine import RunStateMachine
from muster.rundir import RunPaths, write_json
from muster.rundir.records import STATUS_REFRESH_S


class Published:
    """A run without Ray whose status is built by the test."""

    def __init__(self, tmp_path: Path, nodes: int = 4, term: int = 0, **options: Any) -> None:
        run = RunPaths(str(tmp_path / "run-20260101T000000-ab12"))
        self.attempt = run.attempt(0)
        Path(self.attempt.root).mkdir(parents=True, exist_ok=True)
        hosts = [f"n{number}" for number in range(nodes)]
        self.machine = RunStateMachine(RunConfig(hosts, ray=False, **options), 0.0)
        self.publisher = StatusPublisher(Identity(0, "n0", run, self.attempt, True), self.machine, term=term)
        self.publisher.record_changes(self.machine.start(0.0).changes)
        for number, host in enumerate(hosts):
            self.feed(m.Arrived(number, host))

    def feed(self, event: m.Event) -> None:
        self.publisher.record_changes(self.machine.handle(event, 0.0).changes)

    def status(self) -> dict[str, Any] | None:
        text = self.publisher.batch().get(self.attempt.status(self.publisher.term))
        return None if text is None else json.loads(text)


class Clock:
    """Replaces the clock of the publisher."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(status_publisher.time, "monotonic", lambda: self.now)


def test_the_file_has_the_content_of_the_snapshot(tmp_path: Path) -> None:
    run = Published(tmp_path, spares=1, on_node_loss="restart", max_restarts=5)
    for lost in (1, 2):
        status, snapshot = run.status(), run.publisher.snapshot()
        assert status is not None
        assert {**status, "updated": 0} == json.loads(json.dumps({**snapshot, "updated": 0}))
        run.publisher._due = 0.0
        run.feed(m.NodeLost(lost, "lost"))


def test_only_nodes_that_have_changed_are_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, encoded = Published(tmp_path, 50, spares=10, on_node_loss="restart", max_restarts=5), list[int]()
    encode = StatusPublisher._encode_node
    monkeypatch.setattr(
        StatusPublisher, "_encode_node", lambda self, node: (encoded.append(node.node_index), encode(self, node))[1]
    )
    assert run.status() is not None and encoded == list(range(50))
    run.publisher._due = 0.0
    run.feed(m.Health(45, False, "too hot"))
    status = run.status()
    assert status is not None and encoded[50:] == [45] and status["nodes"][45]["ailment"] == "too hot"


def test_a_status_that_takes_long_to_build_is_built_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run, built = Clock(monkeypatch), Published(tmp_path), list[float]()
    build = StatusPublisher._status_text

    def slow(publisher: StatusPublisher, services: dict[str, Any]) -> str:
        built.append(clock.now)
        clock.now += 0.1
        return build(publisher, services)

    monkeypatch.setattr(StatusPublisher, "_status_text", slow)
    events = 0
    for _ in range(50):
        run.publisher.event("note")
        events += len(run.publisher.batch()[run.attempt.events(0)].splitlines())
        clock.now += 0.2
    assert 0.1 * len(built) <= (built[-1] - built[0]) / STATUS_COST_FACTOR + 0.1
    assert events >= 50  # they are never delayed


def test_what_has_changed_meanwhile_is_in_the_next_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = Clock(monkeypatch), Published(tmp_path)
    assert run.status() is not None
    run.publisher._due = clock.now + 5.0
    run.feed(m.NodeLost(1, "lost"))
    assert run.status() is None
    clock.now += 5.0
    status = run.status()
    assert status is not None and status["nodes"][1]["state"] == "lost"
    clock.now += STATUS_REFRESH_S - 0.1
    assert run.status() is None
    clock.now += 0.1
    assert run.status() is not None


def test_the_last_status_is_never_delayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = Clock(monkeypatch), Published(tmp_path)
    run.publisher._due = clock.now + 5.0
    run.feed(m.StopRequested("enough", 15, 0.0))
    assert run.machine.outcome is not None
    run.publisher.run_ends(run.machine.outcome)
    status = run.status()
    assert status is not None and status["outcome"]["end_reason"] == run.machine.outcome.end_reason


def test_the_event_of_a_restart_has_its_reason(tmp_path: Path) -> None:
    run = Published(tmp_path, spares=1, on_node_loss="restart", max_restarts=5)
    run.feed(m.NodeLost(1, "n1 is lost"))
    events = [json.loads(line) for line in run.publisher.batch()[run.attempt.events(0)].splitlines()]
    (restart,) = [event for event in events if event.get("state") == "restarting"]
    assert restart["reason"] == "n1 is lost"


def test_a_later_leader_continues_the_count_of_dropped_cycles(tmp_path: Path) -> None:
    run = Published(tmp_path)
    write_json(run.attempt.status(0), {"cycles_dropped": 5, "cycles_dropped_without_progress": 2})
    Path(run.attempt.leader(0)).write_text("{}")
    snapshot = Published(tmp_path, term=1).publisher.snapshot()
    assert (snapshot["cycles_dropped"], snapshot["cycles_dropped_without_progress"]) == (5, 2)
