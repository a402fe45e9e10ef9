"""Control requests at the leader: what is published, what the state machine gets, and what the next leader knows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent.leader.leader_doubles import LeaderParts, wait_until

from muster.agent.control.messages import ControlRecorded, ControlRequest
from muster.agent.leader.workload_requests import WorkloadRequests, exit_code_request, inherit_requests
from muster.lifecycle.config import RESTART, RunConfig, TermStart
from muster.lifecycle.control import ControlKind
from muster.lifecycle.events import ExclusionRequested, NodeFailed, RestartForbidden, RestartRequested

CONFIG = RunConfig(["n0", "n1", "n2"], ray=False, on_node_loss=RESTART, max_restarts=3)


def request(kind: ControlKind, at_once: bool = True, cycle: int = 0, id: str = "1-ab") -> ControlRequest:
    return ControlRequest(id, kind, "why", at_once, None, cycle)


def running(directory: Path) -> tuple[LeaderParts, WorkloadRequests]:
    parts = LeaderParts(directory, CONFIG)
    parts.arrive()
    return parts, WorkloadRequests(parts.context, dict)


async def test_a_request_is_published_and_is_an_event_of_the_state_machine(tmp_path: Path) -> None:
    parts, requests = running(tmp_path)
    assert requests.record(1, request(ControlKind.EXCLUDE_NODE, at_once=False)) == ExclusionRequested(1, "why", False)
    assert requests.record(1, request(ControlKind.NO_RESTART)) == RestartForbidden("why", 0)
    assert requests.record(2, request(ControlKind.REQUEST_RESTART)) == RestartRequested("why", 0)
    shown = [(one["rank"], one["host"], one["kind"]) for one in parts.publisher.snapshot()["requests"]]
    assert shown == [(1, "n1", "exclude_node"), (1, "n1", "no_restart"), (2, "n2", "request_restart")]
    assert [event["reason"] for event in parts.events("control")] == ["why"] * 3
    assert "n1 requests exclude_node: why" in parts.phases()
    await wait_until(lambda: len(parts.sent.of(ControlRecorded)) == 3)


async def test_a_program_learns_of_the_record_only_when_it_is_written(tmp_path: Path) -> None:
    parts, requests = running(tmp_path)
    requests.record(1, request(ControlKind.NO_RESTART))
    assert parts.sent.of(ControlRecorded) == []
    await wait_until(lambda: parts.sent.of(ControlRecorded))
    assert parts.sent.of(ControlRecorded) == [(1, ControlRecorded(("1-ab",)))]
    assert json.loads(Path(parts.attempt.no_restart).read_text()) == {"reason": "why"}
    assert json.loads(Path(parts.attempt.status(0)).read_text())["requests"][0]["kind"] == "no_restart"


async def test_the_same_request_is_published_once_and_confirmed_each_time(tmp_path: Path) -> None:
    parts, requests = running(tmp_path)
    for at_once in (False, False, True, True):
        requests.record(1, request(ControlKind.EXCLUDE_NODE, at_once))
    requests.record(1, request(ControlKind.NO_RESTART))
    requests.record(2, request(ControlKind.NO_RESTART))
    assert [one["at_once"] for one in parts.publisher.requests] == [False, True, True]
    await wait_until(lambda: len(parts.sent.of(ControlRecorded)) == 6)


async def test_requests_for_a_restart_do_not_fill_the_status(tmp_path: Path) -> None:
    parts, requests = running(tmp_path)
    for number in range(30):
        requests.record(1, request(ControlKind.REQUEST_RESTART, id=f"{number}-a"))
    requests.record(1, request(ControlKind.EXCLUDE_NODE))
    assert len(parts.publisher.requests) == 21
    await wait_until(lambda: len(parts.sent.of(ControlRecorded)) == 31)


async def test_a_request_that_comes_too_late_is_neither_recorded_nor_confirmed(tmp_path: Path) -> None:
    parts, requests = running(tmp_path)
    assert requests.record(1, request(ControlKind.NO_RESTART, cycle=7)) is None
    parts.machine.handle(NodeFailed(0, "health", "it is broken"), 1.0)
    assert parts.machine.outcome is not None
    assert requests.record(1, request(ControlKind.EXCLUDE_NODE)) is None
    assert parts.publisher.requests == [] and not parts.sent.sent


async def test_an_exclusion_of_an_earlier_cycle_is_recorded(tmp_path: Path) -> None:
    _, requests = running(tmp_path)
    assert requests.record(1, request(ControlKind.EXCLUDE_NODE, cycle=7)) == ExclusionRequested(1, "why", True)


async def test_the_next_leader_knows_the_recorded_requests(tmp_path: Path) -> None:
    parts, requests = running(tmp_path)
    start = TermStart(term=1, leader=1, cycle=1, excluded=frozenset({0}), lost=0)
    assert inherit_requests(parts.attempt, start) == start
    for node_index in (0, 2):
        requests.record(node_index, request(ControlKind.EXCLUDE_NODE))
    requests.record(2, request(ControlKind.NO_RESTART))
    await wait_until(lambda: len(parts.sent.of(ControlRecorded)) == 3)
    inherited = inherit_requests(parts.attempt, start)
    assert (inherited.leaving, inherited.no_restart) == (frozenset({2}), "why")


def test_three_exit_codes_are_requests() -> None:
    kinds = [one.kind.value for code in (115, 116, 117) if (one := exit_code_request(code, "exited", 1))]
    assert kinds == ["request_restart", "no_restart", "exclude_node"]
    assert [exit_code_request(code, "exited", 1) for code in (0, 1, 114, 118, 119, 125)] == [None] * 6
