"""The leader's loop: what each event leads to, and how a term ends."""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import DEADLINE_S, GREETING, TOKEN
from tests.agent.leader.leader_doubles import HOSTS, LeaderParts, job, wait_until

from muster.agent import run_directory
from muster.agent.control.channel import connect
from muster.agent.control.connections import AgentJoined, AgentLost, AgentMessage, AgentRejected, HeartbeatAnswered
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    ChecksDone,
    Dismissal,
    EndProcesses,
    Greeting,
    Heartbeat,
    HeartbeatAnswer,
    NodeFailure,
    Note,
    Retirement,
    SignalProcesses,
    SignalReceived,
    StopWork,
    Welcome,
    WorkStopped,
)
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.inbox import (
    Failure,
    MachineEvent,
    RunDirectoryPolled,
    SignalPassedOn,
    StopSignalled,
    TimePassed,
    WorkFailed,
)
from muster.agent.leader.leader import Leader
from muster.election.follower import Campaign
from muster.election.leader_lease import LeaderLease
from muster.election.membership import first_membership
from muster.lifecycle import events as m
from muster.lifecycle.config import RESTART
from muster.lifecycle.roles import Role
from muster.lifecycle.state_machine import RunConfig
from muster.lifecycle.states import NodeState, RunState
from muster.process.lease import ProcessLease
from muster.rundir import read_record, write_json
from muster.rundir.launcher_log import EarlyEnd

SUCCESS = m.DriverEnded(0, "exited with 0", completed=True)


def greeting(node_index: int, host: str | None = None) -> Greeting:
    return replace(GREETING, node_index=node_index, host=host or f"n{node_index}")


class Led:
    """The leader of a gang on three nodes. The test posts its events."""

    def __init__(self, tmp_path: Path, config: RunConfig | None = None) -> None:
        self.parts = LeaderParts(tmp_path, config, procs_per_node=2, kill_wait=30.0)
        self.machine, self.sent, self.publisher = self.parts.machine, self.parts.sent, self.parts.publisher
        self.leader = Leader(self.parts.context)

    def handle(self, *events: Any) -> None:
        for event in events:
            self.leader._handle(event)

    def join(self, *node_indexes: int) -> None:
        self.handle(*(AgentJoined(greeting(node_index), 1.0) for node_index in node_indexes))

    def run(self) -> asyncio.Future[int | None]:
        """Handle posted events, as in a term."""
        return asyncio.ensure_future(asyncio.wait_for(self.leader.run(), DEADLINE_S))

    def post(self, *events: Any) -> None:
        for event in events:
            self.parts.inbox.post(event)

    def post_joins(self) -> None:
        self.post(*(AgentJoined(greeting(node_index), 1.0) for node_index in range(3)))

    def post_gone(self, *node_indexes: int) -> None:
        self.post(*(AgentMessage(node_index, WorkStopped(0)) for node_index in node_indexes))


@pytest.fixture
async def led(tmp_path: Path) -> Led:
    return Led(tmp_path)


# -- agents -----------------------------------------------------------------------------------------------------------


async def test_an_agent_that_joins_is_welcomed_and_arrives(led: Led) -> None:
    led.join(1)
    assert led.machine.nodes[1].state is NodeState.READY  # without Ray
    assert [(node_index, message.cycle) for node_index, message in led.sent.of(Welcome)] == [(1, 0)]


async def test_an_agent_with_a_wrong_node_index_is_refused_and_its_messages_are_ignored(led: Led) -> None:
    led.handle(AgentJoined(greeting(7), 1.0))
    reason = "n7 joined as node 7, but this run has only the nodes 0 to 2"
    assert led.sent.refused == [(7, reason)] and [event["reason"] for event in led.parts.events("refused")] == [reason]
    led.handle(HeartbeatAnswered(7, 2.0, 0), AgentMessage(7, Note("hello")), AgentLost(7, "is gone", 1.0))
    assert led.parts.events("note") == [] and led.machine.outcome is None


async def test_an_agent_that_was_rejected_by_the_connections_is_published(led: Led) -> None:
    led.handle(AgentRejected(greeting(1, "twin"), "another one is node 1"))
    (event,) = led.parts.events("refused")
    assert (event["rank"], event["host"], event["reason"]) == (1, "twin", "another one is node 1")


async def test_a_lost_agent_is_the_run_s_error_at_once_and_its_log_follows(led: Led) -> None:
    led.join(0, 1, 2)
    Path(led.parts.attempt.node_log(1)).write_text("the last words\n")
    led.handle(AgentLost(1, "fell silent", 1.0))
    assert led.machine.outcome is not None and led.machine.outcome.node_index == 1
    assert led.publisher.error is not None and led.publisher.error["log_tail"] == []
    await led.parts.context.error.settle()
    assert led.publisher.error["log_tail"] == ["the last words"]
    assert led.publisher.error["reason"] == "the agent of n1 fell silent"


async def test_a_leader_that_hears_from_no_other_node_blames_its_own(led: Led) -> None:
    led.join(0, 1, 2)
    led.handle(AgentLost(1, "fell silent", 1.0, isolated=True))
    assert led.machine.outcome is not None and led.machine.outcome.node == "n0"
    assert led.machine.outcome.end_reason == "the leader n0 lost contact with all other nodes"
    assert led.publisher.error is not None and led.publisher.error["host"] == "n0"


async def test_a_loss_that_the_run_survives_is_an_event_but_not_its_error(tmp_path: Path) -> None:
    led = Led(tmp_path, RunConfig(HOSTS, ray=False, spares=1, on_node_loss=RESTART, max_restarts=1))
    led.join(0, 1, 2)
    led.handle(AgentLost(1, "fell silent", 1.0))
    await led.parts.context.error.settle()
    assert led.machine.state is RunState.RESTARTING and led.publisher.error is None
    assert [event["host"] for event in led.parts.events("failure")] == ["n1"]
    led.handle(Failure(m.DriverEnded(143, "was ended", 0), 0, "driver", "the driver was ended", "/none"))
    await led.parts.context.error.settle()
    assert len(led.parts.events("failure")) == 1  # it was asked to end


async def test_the_failure_of_a_node_is_published_with_the_lines_that_it_sent(led: Led) -> None:
    led.join(0, 1, 2)
    led.handle(AgentMessage(1, NodeFailure("network", "no address", ("its words",), 0)))
    (event,) = led.parts.events("failure")
    assert (event["phase"], event["log_tail"]) == ("network", ["its words"]) and led.machine.outcome is not None


# -- built-in checks --------------------------------------------------------------------------------------------------

ONE_SPARE = RunConfig(HOSTS, ray=False, spares=1)
LOST_GPU = ChecksDone("gpu-count: 7 of 8 allocated GPUs are listed", {})


def join_checking(led: Led, *node_indexes: int) -> None:
    led.handle(*(AgentJoined(replace(greeting(one), checking=True), 1.0) for one in node_indexes))


async def test_a_node_that_is_being_checked_is_welcomed_and_arrives_with_the_result(led: Led) -> None:
    join_checking(led, 0, 1, 2)
    assert [node_index for node_index, _ in led.sent.of(Welcome)] == [0, 1, 2]
    assert {node.state for node in led.machine.nodes} == {NodeState.EXPECTED}
    assert led.leader._nodes_with_startup_heartbeats() == []  # their agents have started
    led.handle(*(AgentMessage(node_index, ChecksDone(None, {})) for node_index in range(3)))
    assert {node.state for node in led.machine.nodes} == {NodeState.READY}


async def test_a_spare_takes_the_place_of_a_node_whose_check_failed_before_the_driver_runs(tmp_path: Path) -> None:
    led = Led(tmp_path, ONE_SPARE)
    join_checking(led, 0, 1, 2)
    led.handle(AgentMessage(0, ChecksDone(None, {})), AgentMessage(1, LOST_GPU))
    assert led.machine.state is RunState.GATHERING
    led.handle(AgentMessage(2, ChecksDone(None, {})))
    assert [node.role for node in led.machine.nodes] == [Role.ACTIVE, Role.EXCLUDED, Role.ACTIVE]
    assert (led.machine.state, led.machine.cycle) == (RunState.RUNNING, 0)
    assert [node_index for node_index, _ in led.sent.of(StopWork)] == [1]
    assert [event["host"] for event in led.parts.events("check")] == ["n1"]


async def test_without_a_spare_a_failed_check_ends_the_run_before_the_driver(led: Led) -> None:
    join_checking(led, 0, 1, 2)
    led.handle(*(AgentMessage(node_index, ChecksDone(None, {})) for node_index in (0, 2)), AgentMessage(1, LOST_GPU))
    assert led.machine.state is RunState.FINISHING and not led.machine.driver_running
    assert led.machine.outcome is not None and "7 of 8 allocated GPUs" in led.machine.outcome.end_reason


async def test_a_leader_whose_own_check_failed_hands_over_to_a_healthy_node(tmp_path: Path) -> None:
    led = Led(tmp_path, replace(ONE_SPARE, on_node_loss=RESTART))
    join_checking(led, 0, 1, 2)
    led.handle(AgentMessage(1, ChecksDone(None, {})), AgentMessage(2, ChecksDone(None, {})), AgentMessage(0, LOST_GPU))
    assert led.machine.state is RunState.YIELDED


async def test_a_node_that_fails_a_check_after_a_failure_takes_no_part_in_the_next_cycle(tmp_path: Path) -> None:
    led = Led(tmp_path, replace(ONE_SPARE, restart_on_driver_failure=True, max_restarts=1))
    led.join(0, 1, 2)
    led.handle(MachineEvent(m.DriverEnded(7, "exited with 7", completed=True)))
    assert led.machine.cycle == 1 and [node for node, _ in led.sent.of(StopWork)] == [0, 1, 2]
    for node_index, result in ((0, ChecksDone(None, {})), (1, LOST_GPU), (2, ChecksDone(None, {}))):
        led.handle(AgentMessage(node_index, result), AgentMessage(node_index, WorkStopped(1)))
    assert [node.role for node in led.machine.nodes] == [Role.ACTIVE, Role.EXCLUDED, Role.ACTIVE]
    assert led.machine.state is RunState.RUNNING


async def test_a_check_that_fails_after_the_end_of_the_run_began_is_recorded(led: Led) -> None:
    led.join(0, 1, 2)
    led.handle(MachineEvent(m.DriverEnded(7, "exited with 7", completed=True)))
    assert led.machine.state is RunState.FINISHING
    led.handle(AgentMessage(1, LOST_GPU), AgentMessage(1, WorkStopped(0)))
    assert [event["host"] for event in led.parts.events("check")] == ["n1"]


# -- the run directory, signals and defects ---------------------------------------------------------------------------


async def test_a_stop_request_and_a_signal_stop_the_run_with_different_grace(tmp_path: Path) -> None:
    request = {"reason": "stopped by alice", "signal": 2, "patient": True}
    asked, signalled = Led(tmp_path / "a"), Led(tmp_path / "b")
    for led, event in (
        (asked, RunDirectoryPolled(request)),
        (signalled, StopSignalled("the job received SIGTERM", 15)),
    ):
        led.join(0, 1, 2)
        led.handle(event)
        assert led.machine.outcome is not None and led.machine.outcome.state == "stopped"
    assert (asked.leader._driver_supervisor.driver._grace, asked.leader._signalled) == (30.0, False)  # type: ignore[attr-defined]
    assert (signalled.leader._driver_supervisor.driver._grace, signalled.leader._signalled) == (5.0, True)  # type: ignore[attr-defined]
    assert signalled.leader._killed_at is not None and asked.leader._killed_at is None


async def test_a_signal_that_an_agent_received_stops_the_run(led: Led) -> None:
    led.join(0, 1, 2)
    led.handle(AgentMessage(2, SignalReceived(15)))
    assert led.machine.outcome is not None and led.machine.outcome.end_reason == "the job received SIGTERM"
    assert "n2 received SIGTERM" in led.parts.phases()


async def test_a_signal_for_the_driver_is_passed_on(led: Led) -> None:
    led.join(0, 1, 2)
    led.leader._driver_supervisor.driver._waiting = {1, 2}  # type: ignore[attr-defined]
    led.handle(SignalPassedOn(10))
    assert led.sent.of(SignalProcesses) == [(1, SignalProcesses(10)), (2, SignalProcesses(10))]
    assert "SIGUSR1 is passed on to the driver" in led.parts.phases()


@pytest.mark.parametrize(
    "news",
    [
        RunDirectoryPolled(ended_tasks=[EarlyEnd("n2", 2, "no Python")]),
        RunDirectoryPolled(ended_tasks=[EarlyEnd("n2", None, "no Python")]),
        RunDirectoryPolled(silent_nodes=frozenset({2})),
    ],
    ids=str,
)
async def test_a_node_whose_task_ended_before_it_arrived_fails_the_run(led: Led, news: RunDirectoryPolled) -> None:
    led.join(0, 1)
    led.handle(news)
    assert led.machine.outcome is not None and led.machine.outcome.node == "n2"


async def test_the_end_of_the_task_of_a_member_is_left_to_its_connection(led: Led) -> None:
    led.join(0, 1, 2)
    led.handle(RunDirectoryPolled(ended_tasks=[EarlyEnd("n2", 2, "ended early")], silent_nodes=frozenset({1})))
    assert led.machine.outcome is None


async def test_a_defect_in_a_handler_or_a_task_fails_the_run(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    led.join(0, 1, 2)
    monkeypatch.setattr(led.publisher, "phase", lambda text: 1 / 0)
    led.handle(AgentMessage(1, Note("hello")))
    monkeypatch.undo()
    (failed,) = led.parts.posted
    assert isinstance(failed, WorkFailed)
    led.handle(failed)
    assert led.machine.outcome is not None and "ZeroDivisionError" in led.machine.outcome.end_reason


# -- the end of a term ------------------------------------------------------------------------------------------------


async def test_the_outcome_is_written_and_the_agents_are_dismissed(led: Led) -> None:
    running = led.run()
    led.post_joins()
    led.post(MachineEvent(m.DriverEnded(7, "exited with 7")))
    led.post_gone(0, 1, 2)
    assert await running == 7
    assert led.sent.released == [Dismissal(7, "the driver exited with 7")] and not led.sent.closed
    outcome = read_record(led.parts.attempt.outcome)
    assert (outcome["exit_code"], outcome["signalled"]) == (7, False)
    assert read_record(led.parts.attempt.status(0))["outcome"]["exit_code"] == 7


async def test_the_error_has_its_log_before_the_outcome_is_written(led: Led) -> None:
    Path(led.parts.attempt.node_log(1)).write_text("the last words\n")
    running = led.run()
    led.post_joins()
    led.post(AgentLost(1, "is gone", 1.0), MachineEvent(m.DriverEnded(143, "was ended")))
    led.post_gone(0, 2)
    assert await running == 125
    status = read_record(led.parts.attempt.status(0))
    assert status["error"]["log_tail"] == ["the last words"]


async def test_a_success_has_no_error_although_a_node_was_lost_before_it_was_known(led: Led) -> None:
    running = led.run()
    led.post_joins()
    led.post(AgentLost(1, "is gone", 1.0), MachineEvent(SUCCESS))
    led.post_gone(0, 2)
    assert await running == 0
    status = read_record(led.parts.attempt.status(0))
    assert (status["error"], status["state"]) == (None, "succeeded")


async def test_a_leader_whose_lease_has_ended_steps_down_and_records_nothing(led: Led) -> None:
    running = led.run()
    led.post_joins()
    await wait_until(lambda: led.machine.driver_running)
    led.parts.process_lease.renew(0.0)
    led.post(AgentMessage(1, Note("too late")), TimePassed())
    assert await running is None
    assert led.sent.closed and led.sent.released == [] and led.parts.events("note") == []
    assert not Path(led.parts.attempt.outcome).exists()
    assert led.leader.step_down_reason == "n0 has lost the majority of the nodes"


async def test_a_suspension_is_published_and_a_short_stop_is_not(led: Led) -> None:
    led.handle(TimePassed(2.0), TimePassed(61.2), TimePassed())
    assert [(event["seconds"], event["text"]) for event in led.parts.events("suspended")] == [
        (61.2, "suspended for 61 s")
    ]


async def test_while_the_lease_is_lapsed_events_wait_and_then_come_in_their_order(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaderLease, "lapsed", True)
    running = led.run()
    led.post_joins()
    led.post(AgentMessage(1, Note("first")), TimePassed(60.0), AgentMessage(1, Note("second")))
    await wait_until(lambda: len(led.leader._waiting) >= 5)
    assert led.parts.events("note") == [] and not led.machine.driver_running
    monkeypatch.setattr(LeaderLease, "lapsed", False)
    led.post(HeartbeatAnswered(1, 2.0, 0))
    await wait_until(lambda: led.machine.driver_running)
    led.post(TimePassed())
    await wait_until(lambda: led.parts.events("suspended"))
    assert [event["text"] for event in led.parts.events("note")] == ["first", "second"]
    assert [event["seconds"] for event in led.parts.events("suspended")] == [60.0]
    led.parts.process_lease.renew(0.0)
    led.post(TimePassed())
    assert await running is None


async def test_a_lease_that_ends_while_the_driver_is_closed_prevents_the_outcome(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close() -> None:
        led.parts.process_lease.renew(0.0)

    monkeypatch.setattr(led.leader._driver_supervisor, "close", close)
    running = led.run()
    led.post_joins()
    led.post(MachineEvent(SUCCESS))
    led.post_gone(0, 1, 2)
    assert await running is None
    assert led.sent.released == [] and not Path(led.parts.attempt.outcome).exists()


async def test_the_lease_is_renewed_while_the_end_is_published(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    closing, closed = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        closing.set()
        await closed.wait()

    monkeypatch.setattr(led.leader._driver_supervisor, "close", close)
    answers: list[int] = []
    monkeypatch.setattr(led.leader._lease, "on_answer", lambda node_index, sent, version: answers.append(node_index))
    running = led.run()
    led.post_joins()
    led.post(MachineEvent(SUCCESS))
    led.post_gone(0, 1, 2)
    await asyncio.wait_for(closing.wait(), DEADLINE_S)
    led.post(HeartbeatAnswered(1, 2.0, 0))
    await wait_until(lambda: answers)
    closed.set()
    assert await running == 0


async def test_a_leader_that_cannot_publish_the_end_steps_down(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led.publisher, "conclude", lambda *args: 1 / 0)
    running = led.run()
    led.post_joins()
    led.post(MachineEvent(SUCCESS))
    led.post_gone(0, 1, 2)
    assert await running is None
    assert led.sent.closed and "ZeroDivisionError" in led.leader.step_down_reason


async def test_a_leader_whose_own_node_failed_hands_over(tmp_path: Path) -> None:
    led = Led(tmp_path, RunConfig(HOSTS, ray=True, spares=1, on_node_loss=RESTART, max_restarts=1))
    running = led.run()
    led.post_joins()
    led.post(AgentMessage(0, NodeFailure("ray", "Ray did not start", (), 0)))
    assert await running is None
    assert [type(message) for message in led.sent.released] == [Retirement]


async def test_events_are_handled_while_the_filesystem_hangs(led: Led) -> None:
    answers = threading.Event()
    running = led.run()
    hanging = asyncio.ensure_future(led.parts.context.files.run(answers.wait))
    led.post_joins()
    led.post(AgentLost(1, "fell silent", 1.0))
    await wait_until(lambda: led.sent.of(EndProcesses) or led.machine.outcome is not None)
    assert led.machine.outcome is not None and not hanging.done()
    answers.set()
    led.post(MachineEvent(m.DriverEnded(143, "was ended")))
    led.post_gone(0, 2)
    assert await running == 125


# -- with real connections and a real driver --------------------------------------------------------------------------


def fail_openings(monkeypatch: pytest.MonkeyPatch, openings: Mapping[str, Collection[int]]) -> Counter[str]:
    """Let openings of files with these names fail, by their numbers from 1; return how often each was opened."""
    opened: Counter[str] = Counter()

    def failing(real: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
        name = os.path.basename(path) if isinstance(path, str) else ""
        opened[name] += 1
        if opened[name] in openings.get(name, ()):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *args, **options)

    monkeypatch.setattr(run_directory, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(builtins, "open", partial(failing, open))
    monkeypatch.setattr(os, "open", partial(failing, os.open))
    return opened


@pytest.mark.parametrize(
    "failing",
    [{}, {"hosts": [1], "env.json": [1, 3], "driver.log": [2]}],
    ids=["", "while files that it needs cannot be opened"],
)
async def test_a_candidate_becomes_a_leader_that_runs_the_job_of_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Mapping[str, Collection[int]]
) -> None:
    opened = fail_openings(monkeypatch, failing)
    parts = LeaderParts(tmp_path)
    Path(parts.attempt.hosts).write_text("n0\n")
    (Path(parts.attempt.root) / "nodes").mkdir(exist_ok=True)
    write_json(parts.identity.run.env, {"GREETING": "hello"})
    plan = {"gather_timeout": 60.0, "start_timeout": 60.0, "last_call": 0.0, "on_node_loss": "fail", "segment": 1}
    limits = {"max_restarts": 0, "no_progress_limit": 0, "large_from": 64, "services": [], "ray_logs": "never"}
    command = {"command": ["sh", "-c", "echo $GREETING; exit 3"], "workdir": str(tmp_path), "nodes": 1}
    small = job(**plan, **limits, **command)
    candidate = Candidate(parts.identity, small, TOKEN, Campaign(0, first_membership(1, 0)), "")
    assert await candidate.claim() and await candidate.win()
    port = read_record(parts.attempt.leader(0))["port"]
    agent = await connect(["127.0.0.1"], port, TOKEN, CONTROL_PROTOCOL, greeting(0))
    leader = await Leader.create(parts.identity, small, candidate, ProcessLease())
    running = asyncio.ensure_future(leader.run())
    while not isinstance(message := await asyncio.wait_for(agent.receive(), DEADLINE_S), Dismissal):
        if isinstance(message, Heartbeat):
            agent.send(HeartbeatAnswer(message.at, -1, 0.0))
        elif isinstance(message, StopWork):
            agent.send(WorkStopped(message.cycle))
        assert message is not None
    assert message == Dismissal(3, "the driver exited with 3")
    assert await asyncio.wait_for(running, DEADLINE_S) == 3
    assert Path(parts.attempt.driver_log).read_text() == "hello\n"
    assert read_record(parts.attempt.status(0))["error"]["log_tail"] == ["hello"]
    assert all(opened[name] > max(numbers) for name, numbers in failing.items())
    agent.close()
    candidate.abandon()
