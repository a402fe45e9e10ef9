"""A node's agent under a leader: heartbeats, membership, the stop of a cycle, ways to be released, failure reports."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import DEADLINE_S, GREETING, TOKEN, Listener, identity
from tests.agent.leader.leader_doubles import job
from tests.agent.recorded_checks import RecordedProcess
from tests.running import wait_for

from muster.agent import node
from muster.agent import node as module
from muster.agent.control.channel import Channel, connect
from muster.agent.control.codec import Message
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    ChecksDone,
    Dismissal,
    DumpStacks,
    EndProcesses,
    HealthReport,
    Heartbeat,
    HeartbeatAnswer,
    MembershipUpdate,
    NodeFailure,
    ProcessesEnded,
    RankFailed,
    Refusal,
    Retirement,
    ServiceMembers,
    SignalProcesses,
    SignalReceived,
    StacksDumped,
    StartCheck,
    StartInstances,
    StartProcesses,
    StartRay,
    StopCheck,
    StopWork,
    Welcome,
    WorkStopped,
)
from muster.agent.gang_part import GangPart
from muster.agent.health.checks.finding import Verdict
from muster.agent.health.checks.runner import NodeCheckResult
from muster.agent.job import Job
from muster.agent.log_collection import LogCollection
from muster.agent.node import FollowResult, NodeAgent
from muster.agent.node_checks import NodeChecks
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.node import RayNode
from muster.agent.ray.settings import RayOptions
from muster.election.membership import first_membership
from muster.exit_codes import BY_SIGNAL
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation
from muster.process.lease import ProcessLease
from muster.rundir import write_atomic, write_json

MEMBERSHIP = first_membership(3)
WELCOME = Welcome(cycle=2, leads=False, interface=None, services=False, ray=None)
STOP = StopWork(cycle=2, logs=LogCollection(failed=False, after=0.0, seconds=0.0), check_seconds=None)


class CountedLease(ProcessLease):
    """Records for how long it was renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[float] = []

    def renew(self, seconds: float) -> None:
        self.renewals.append(seconds)


class Led:
    """An agent that follows the test's leader; `channel` is the leader's end of their connection."""

    def __init__(self, directory: Path) -> None:
        self.identity, self.lease = identity(directory, 1), CountedLease()
        write_atomic(self.identity.run.env, "{}", mode=0o600)
        os.makedirs(os.path.dirname(self.identity.attempt.node_log(1)), exist_ok=True)
        self.agent = NodeAgent(self.identity, TOKEN, self.lease)

    async def connect(self, leader: Listener) -> None:
        self.own_end = await connect(["127.0.0.1"], leader.port, TOKEN, CONTROL_PROTOCOL, GREETING)
        self.channel: Channel = await leader.channel()
        self.following = asyncio.create_task(self.agent.follow(self.own_end))

    async def next(self) -> Message:
        message = await asyncio.wait_for(self.channel.receive(), DEADLINE_S)
        assert message is not None, "the agent closed the connection"
        return message

    async def ask(self, *messages: Message) -> Message:
        """Send the messages and return the first answer."""
        for message in messages:
            self.channel.send(message)
        return await self.next()

    async def handled(self) -> None:
        """Wait until the agent has handled all messages that were sent before."""
        assert await self.ask(STOP) == WorkStopped(2)

    async def end(self, message: Message | None) -> FollowResult:
        """Send the last message, or end the connection; return how following ended."""
        if message is None:
            self.channel.close()
        else:
            self.channel.send(message)
        return await asyncio.wait_for(self.following, DEADLINE_S)


@pytest.fixture
async def led(leader: Listener, tmp_path: Path) -> AsyncIterator[Led]:
    led = Led(tmp_path)
    await led.connect(leader)
    yield led
    await asyncio.wait_for(led.agent.clean(), DEADLINE_S)
    led.own_end.close()
    led.following.cancel()
    await asyncio.gather(led.following, return_exceptions=True)


# -- heartbeats and membership --------------------------------------------------------------------------------------


async def test_heartbeats_and_memberships_are_answered_while_a_command_runs(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, finish = asyncio.Event(), asyncio.Event()

    async def clean(ending: LogCollection | None = None) -> None:
        began.set()
        await finish.wait()

    with monkeypatch.context() as patch:
        patch.setattr(led.agent, "clean", clean)
        led.channel.send(STOP)
        await asyncio.wait_for(began.wait(), DEADLINE_S)
        answer = await led.ask(Heartbeat(at=17.5, heard=None))
        assert isinstance(answer, HeartbeatAnswer) and (answer.at, answer.version) == (17.5, -1)
        confirmed = await led.ask(MembershipUpdate(MEMBERSHIP))
        assert isinstance(confirmed, HeartbeatAnswer) and confirmed.at is None
        assert confirmed.version == MEMBERSHIP.version and led.agent.membership == MEMBERSHIP
        assert not led.agent.stopped
        finish.set()
        assert await led.next() == WorkStopped(2)


async def test_an_answer_has_the_agent_s_time_and_that_time_is_remembered(led: Led) -> None:
    first = await led.ask(Heartbeat(1.0, None))
    second = await led.ask(Heartbeat(2.0, None))
    assert isinstance(first, HeartbeatAnswer) and isinstance(second, HeartbeatAnswer)
    assert first.time <= second.time == led.agent.last_answer


@pytest.mark.parametrize(
    ("membership", "leads", "renewed"), [(True, False, True), (False, False, False), (True, True, False)]
)
async def test_the_lease_is_renewed_from_the_answer_that_the_leader_has_received(
    led: Led, membership: bool, leads: bool, renewed: bool
) -> None:
    """Not from now: the leader counts the node alive for a lease since that answer."""
    led.agent.leads = leads
    if membership:
        await led.ask(MembershipUpdate(MEMBERSHIP))
    await led.ask(Heartbeat(1.0, led.agent.last_answer - 3.0))
    assert bool(led.lease.renewals) == renewed
    assert all(0 <= seconds <= node.LEASE_S - 3.0 for seconds in led.lease.renewals[-1:])


async def test_a_lease_is_never_renewed_for_a_negative_time(led: Led) -> None:
    await led.ask(MembershipUpdate(MEMBERSHIP))
    await led.ask(Heartbeat(1.0, led.agent.last_answer - 10 * node.LEASE_S))
    assert led.lease.renewals[-1] == 0.0


async def test_a_membership_is_kept_under_the_next_leader(led: Led, leader: Listener) -> None:
    await led.ask(MembershipUpdate(MEMBERSHIP))
    assert await led.end(Retirement(None)) is FollowResult.RELEASED
    led.own_end.close()
    await led.connect(leader)
    answer = await led.ask(Heartbeat(1.0, None))
    assert isinstance(answer, HeartbeatAnswer) and answer.version == MEMBERSHIP.version
    assert led.agent.membership == MEMBERSHIP


# -- ways to be released --------------------------------------------------------------------------------------------


async def test_a_dismissal_ends_the_agent_with_the_job_s_exit_code(led: Led, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, node.__name__):
        assert await led.end(Dismissal(7, "the driver exited with 7")) is FollowResult.DISMISSED
    assert led.agent.code == 7
    assert "the run has ended with 7: the driver exited with 7" in caplog.text


async def test_a_refusal_is_reported_with_its_reason(led: Led, caplog: pytest.LogCaptureFixture) -> None:
    assert await led.end(Refusal("n1 is node 2")) is FollowResult.REFUSED
    assert "the leader refused this agent: n1 is node 2" in caplog.text


@pytest.mark.parametrize(
    ("reason", "loss_reason"),
    [("it has no majority", "has stepped down: it has no majority"), (None, "is gone: its connection ended")],
)
async def test_a_released_agent_knows_why_it_has_no_leader(led: Led, reason: str | None, loss_reason: str) -> None:
    assert await led.end(Retirement(reason)) is FollowResult.RELEASED
    assert led.agent.loss_reason == loss_reason


async def test_the_end_of_the_connection_is_the_loss_of_the_leader(led: Led) -> None:
    assert await led.end(None) is FollowResult.LOST
    assert led.agent.loss_reason == "is gone: its connection ended" and led.agent.code == 0


async def test_a_leader_that_sends_nothing_is_lost_by_silence(
    led: Led, leader: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    await led.end(Retirement(None))
    led.own_end.close()
    monkeypatch.setattr("muster.agent.control.channel.HEARTBEAT_TIMEOUT_S", 0.1)
    await led.connect(leader)
    assert await asyncio.wait_for(led.following, DEADLINE_S) is FollowResult.LOST
    assert led.agent.loss_reason == "fell silent"


# -- a cycle --------------------------------------------------------------------------------------------------------


async def test_a_stopped_node_is_welcomed_to_the_next_cycle(led: Led) -> None:
    await led.handled()
    assert led.agent.stopped
    led.channel.send(WELCOME)
    await led.ask(Heartbeat(1.0, None))
    assert await led.end(Retirement(None)) is FollowResult.RELEASED  # after the welcome was handled
    assert not led.agent.stopped


@pytest.mark.parametrize(
    "message",
    [
        StartRay(0, None, None, None),
        StartInstances(("web",), 2),
        ServiceMembers("web", 1, None, (), (), None, 2),
        SignalProcesses(15),
        EndProcesses(0.0),
        StopCheck(),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_message_for_something_that_does_not_run_has_no_effect(led: Led, message: Message) -> None:
    led.channel.send(message)
    await led.handled()


def gang_job(led: Led, command: str) -> StartProcesses:
    fields: dict[str, Any] = {"groups": [], "nodes": 2, "spares": 0, "ray": False, "max_restarts": 0, "large_from": 64}
    job = {**dict.fromkeys(Job.__dataclass_fields__), **fields, "workdir": led.identity.run.root}
    write_json(led.identity.run.job, {**job, "command": ["bash", "-c", command]})
    return StartProcesses(GangPart(2, 1, 2, 1, "127.0.0.1", 29400), None, None, {})


async def test_processes_of_a_gang_are_started_signalled_and_reported(led: Led) -> None:
    led.channel.send(WELCOME)
    request = gang_job(led, "trap 'exit 3' USR1; touch ready; while :; do sleep 0.02; done")
    led.channel.send(request)
    await asyncio.to_thread(wait_for, "the process", Path(led.identity.run.root, "ready").exists)
    failed = await led.ask(SignalProcesses(signal.SIGUSR1))
    assert isinstance(failed, RankFailed) and (failed.rank, failed.exit_code) == (1, 3)
    assert await led.next() == ProcessesEnded(2)


async def test_a_stop_ends_the_processes_before_it_is_answered(led: Led) -> None:
    led.channel.send(gang_job(led, "echo $$ >pid.tmp; mv pid.tmp pid; exec sleep 1000"))
    pid = Path(led.identity.run.root, "pid")
    await asyncio.to_thread(wait_for, "the process", pid.exists)
    process = Path("/proc", pid.read_text().strip())
    assert process.exists()
    answers = [await led.ask(STOP)]
    while answers[-1] != WorkStopped(2):
        answers.append(await led.next())
    assert not process.exists() and ProcessesEnded(2) in answers


async def test_the_health_check_is_run_and_its_result_reported_until_the_stop(led: Led) -> None:
    assert await led.ask(StartCheck("echo the GPU is gone; exit 4", 0.01)) == HealthReport(
        False, "--health-check failed: the GPU is gone (code 4)"
    )
    led.channel.send(STOP)
    while await led.next() != WorkStopped(2):
        pass
    answer = await led.ask(Heartbeat(1.0, None))
    assert isinstance(answer, HeartbeatAnswer)  # and no report of a check between them


async def test_the_results_of_the_checks_before_the_job_follow_the_greeting(leader: Listener, tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.agent.checks = failing_checks(led)
    await led.connect(leader)
    assert await led.next() == ChecksDone("disk: full", {})
    assert await led.end(None) is FollowResult.LOST
    await led.connect(leader)  # the next leader learns the same
    assert await led.next() == ChecksDone("disk: full", {})
    assert await led.end(Dismissal(0, None)) is FollowResult.DISMISSED


async def test_a_node_checks_itself_after_a_failure_before_it_reports_that_it_is_clean(led: Led) -> None:
    led.agent.checks = failing_checks(led)
    assert await led.ask(replace(STOP, check_seconds=5.0)) == ChecksDone("disk: full", {})
    assert await led.next() == WorkStopped(2)


def failing_checks(led: Led) -> NodeChecks:
    checks = NodeChecks(led.identity, RecordedProcess(NodeCheckResult("disk", Verdict.FAILED, "full", None, 0.0)))
    checks.begin(job(node_checks="basic"))
    return checks


async def test_stacks_are_dumped_to_the_node_s_file(led: Led) -> None:
    assert isinstance(await led.ask(WELCOME, DumpStacks()), StacksDumped)
    assert os.path.exists(led.identity.attempt.stacks(1))


async def test_stacks_that_cannot_be_written_are_reported_as_missing(led: Led) -> None:
    os.makedirs(led.identity.attempt.stacks(1))
    assert await led.ask(DumpStacks()) == StacksDumped(False)


# -- failures and signals -------------------------------------------------------------------------------------------


async def test_an_interface_that_does_not_exist_is_a_failure_with_the_last_lines_of_the_log(led: Led) -> None:
    """Only on a real node: virtual nodes of one machine use loopback."""
    write_atomic(led.identity.attempt.node_log(1), "first\nlast\n")
    object.__setattr__(led.identity, "local", False)
    failure = await led.ask(Welcome(2, False, "muster-no-such", False, RayOptions(1, 0, False, 2, False)))
    assert isinstance(failure, NodeFailure)
    assert (failure.phase, failure.tail, failure.cycle) == ("network", ("first", "last"), 2)
    assert "muster-no-such" in failure.reason
    await led.handled()  # Ray was not prepared


async def test_services_that_cannot_be_read_are_a_failure(led: Led) -> None:
    failure = await led.ask(Welcome(2, False, None, services=True, ray=None))
    assert isinstance(failure, NodeFailure) and failure.phase == "service"
    assert failure.reason.startswith("the job's services could not be read")


async def test_a_node_with_too_few_cpus_is_a_failure_of_its_resources(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    failure = await led.ask(Welcome(2, False, None, False, RayOptions(2, None, False, 2, local=False)))
    assert isinstance(failure, NodeFailure) and failure.phase == "resources"
    assert failure.reason.startswith("n1: this step may use 1 CPUs, 2 were asked for")


@pytest.mark.parametrize(("location", "topology"), [(UNKNOWN_LOCATION, ""), (NodeLocation("s1", "s1.n1"), "s1.n1")])
async def test_a_node_has_a_topology_in_ray_only_where_slurm_knows_one(
    led: Led, monkeypatch: pytest.MonkeyPatch, location: NodeLocation, topology: str
) -> None:
    """Without one, Slurm's address of a node is its bare name."""
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "n1")
    made: list[NodeFacts] = []

    def ray_node(options: RayOptions, facts: NodeFacts, *_: object) -> RayNode:
        made.append(facts)
        raise ValueError("enough is known")

    monkeypatch.setattr(node, "RayNode", ray_node)
    led.agent.location = location
    await led.ask(Welcome(2, False, None, False, RayOptions(1, 0, False, 2, local=True)))
    assert made[0].topology == topology


async def test_a_ray_that_cannot_be_prepared_is_a_failure(led: Led) -> None:
    os.unlink(led.identity.run.env)
    failure = await led.ask(Welcome(2, False, None, False, RayOptions(1, 0, False, 2, local=True)))
    assert isinstance(failure, NodeFailure) and failure.phase == "ray"
    assert led.identity.run.env in failure.reason


async def test_a_signal_of_slurm_is_reported_to_the_leader(led: Led) -> None:
    await led.ask(Heartbeat(1.0, None))  # it follows now
    led.agent.report_signal(signal.SIGTERM)
    assert await led.next() == SignalReceived(signal.SIGTERM)


async def test_without_a_leader_a_signal_ends_the_agent(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    await led.end(None)
    codes: list[int] = []
    monkeypatch.setattr(node.os, "_exit", codes.append)
    led.agent.report_signal(signal.SIGTERM)
    assert codes == [BY_SIGNAL + signal.SIGTERM]


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_failure_is_reported_with_the_node_s_log_unless_its_filesystem_hangs(
    tmp_path: Path, leader: Listener, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    own = identity(tmp_path, 3)
    Path(own.attempt.node_log(3)).parent.mkdir(parents=True, exist_ok=True)
    Path(own.attempt.node_log(3)).write_text("its words\n")
    answers = threading.Event()
    if hangs:
        monkeypatch.setattr(module, "TAIL_TIMEOUT_S", 0.05)
        monkeypatch.setattr(module, "tail_lines", lambda path: [str(answers.wait())])
    node = NodeAgent(own, TOKEN, ProcessLease())
    agent = await connect(["127.0.0.1"], leader.port, TOKEN, CONTROL_PROTOCOL, GREETING)
    channel = await leader.channel()
    following = asyncio.ensure_future(node.follow(agent))
    await asyncio.sleep(0)
    node._report_failure("ray", "Ray did not start")
    message = await asyncio.wait_for(channel.receive(), DEADLINE_S)
    answers.set()
    assert message == NodeFailure("ray", "Ray did not start", () if hangs else ("its words",), 0)
    channel.close()
    await asyncio.wait_for(following, DEADLINE_S)
    agent.close()
