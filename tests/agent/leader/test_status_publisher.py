"""What the leader publishes: status, events and phases, in batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.agent.leader.leader_doubles import HOSTS, LeaderParts

from muster.agent.leader.status_publisher import StatusPublisher, node_entry
from muster.lifecycle.events import Arrived, RunOutcome, Tick
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.state_machine import RunConfig, RunStateMachine
from muster.lifecycle.states import NodeState
from muster.lifecycle.topology import NodeLocation
from muster.process.log_segments import segment_path
from muster.rundir import read_record, write_json


@pytest.fixture
async def parts(tmp_path: Path) -> LeaderParts:
    return LeaderParts(tmp_path)


def status(texts: dict[str, str], parts: LeaderParts) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts[parts.attempt.status(0)])
    return found


async def test_the_changes_of_a_transition_are_one_batch(parts: LeaderParts) -> None:
    publisher, machine = parts.publisher, parts.machine
    for node_index, host in enumerate(HOSTS):
        publisher.record_changes(machine.handle(Arrived(node_index, host), 0.0).changes)
    texts = publisher.batch()
    events = [json.loads(line) for line in texts[parts.attempt.events(0)].splitlines()]
    assert {event["host"] for event in events if event["event"] == "node"} == set(HOSTS)
    assert [node["host"] for node in status(texts, parts)["nodes"]] == HOSTS
    assert "running: 3 nodes" in texts[parts.attempt.phases_log]
    assert publisher.batch() == {}  # nothing is new


async def test_the_size_of_a_cycle_that_begins_with_fewer_nodes_is_published(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path, RunConfig(HOSTS, ray=False, gather_timeout=9.0, min_nodes=2))
    for event in (Arrived(0, HOSTS[0]), Arrived(2, HOSTS[2]), Tick()):
        parts.publisher.record_changes(parts.machine.handle(event, 9.0).changes)
    assert "starting: 2 of 3 nodes" in parts.phases()
    assert [event.get("nodes") for event in parts.events("run")] == [2, None]


async def test_a_failed_write_is_not_the_end_and_its_lines_follow(parts: LeaderParts, tmp_path: Path) -> None:
    events = Path(parts.attempt.events(0))
    events.mkdir()  # in the way
    parts.publisher.event("note", text="first")
    parts.publisher.write(parts.publisher.batch())
    events.rmdir()
    parts.publisher.event("note", text="second")
    parts.publisher.write(parts.publisher.batch())
    assert [json.loads(line)["text"] for line in events.read_text().splitlines()] == ["first", "second"]


async def test_secrets_are_redacted_in_all_that_is_published(tmp_path: Path) -> None:
    parts = LeaderParts(tmp_path)
    publisher = StatusPublisher(parts.identity, parts.machine, ["hunter2-secret"])
    publisher.phase("the token is hunter2-secret")
    publisher.event("note", text="hunter2-secret")
    publisher.note_error(parts.machine.nodes[1], "driver", "hunter2-secret is wrong")
    assert "hunter2-secret" not in "".join(publisher.batch().values())


async def test_the_outcome_is_written_once(parts: LeaderParts) -> None:
    first = RunOutcome("failed", 7, "the driver exited with 7")
    parts.publisher.conclude(parts.publisher.batch(), first, signalled=True)
    parts.publisher.conclude({}, RunOutcome("succeeded", 0, "later"), signalled=False)
    record = read_record(parts.attempt.outcome)
    assert (record["exit_code"], record["state"], record["signalled"]) == (7, "failed", True)


async def test_the_outcome_has_the_length_of_the_driver_s_output_in_all_its_files(parts: LeaderParts) -> None:
    log = Path(parts.attempt.driver_log)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"x" * 100)
    Path(segment_path(str(log), 100)).write_bytes(b"y" * 20)
    parts.publisher.conclude({}, RunOutcome("succeeded", 0, "done"), signalled=False)
    assert read_record(parts.attempt.outcome)["driver_bytes"] == 120


async def test_a_later_leader_continues_the_cycles_timings_and_guests_of_the_last_one(parts: LeaderParts) -> None:
    guests = [{"id": "a", "state": "ended", "exit_code": 0}]
    before = {"cycles": [{"cycle": 0, "end": 5.0}], "timings": {"job_start": 3.0}, "guests": guests}
    write_json(parts.attempt.status(0), before)
    machine = RunStateMachine(RunConfig(HOSTS, ray=False), 0.0)
    machine.cycle = 1
    publisher = StatusPublisher(parts.identity, machine, term=1)
    publisher.record_changes([])
    assert publisher.timings["job_start"] == 3.0 and publisher.guests == guests
    assert [entry["cycle"] for entry in publisher.snapshot()["cycles"]] == [0, 1]


async def test_the_driver_s_end_and_a_new_cycle_are_in_the_status(parts: LeaderParts) -> None:
    publisher = parts.publisher
    publisher.record_changes([])
    publisher.driver_begins(["python", "train.py"], 12)
    assert publisher.snapshot()["driver"]["state"] == "running" and publisher.snapshot()["cycles"][0]["log_start"] == 12
    publisher.driver_ends(1)
    assert publisher.snapshot()["driver"] == {"state": "ended", "exit_code": 1}
    publisher.cycle_begins(1, "restarted")
    assert publisher.snapshot()["driver"] == {"state": "waiting", "exit_code": None}


def test_an_unhealthy_node_and_its_domain_are_shown() -> None:
    node = RunNode(3, "n3", NodeState.ARRIVED, Role.SPARE, unhealthy_reason="no GPU", location=NodeLocation("rack1"))
    entry = node_entry(node)
    assert (entry["healthy"], entry["ailment"], entry["domain"], entry["logical_rank"]) == (
        False,
        "no GPU",
        "rack1",
        None,
    )
