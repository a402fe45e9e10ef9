"""The leader's side of a gang: which failure it reports, and for which nodes it waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.agent.leader.leader_doubles import LeaderParts, wait_until

from muster.agent.control.messages import (
    EndProcesses,
    HungRankEnded,
    ProcessesEnded,
    RankFailed,
    SignalProcesses,
    StartProcesses,
)
from muster.agent.leader import gang as module
from muster.agent.leader.gang import Gang
from muster.agent.leader.services import LeaderServices
from muster.process import Exit


class Running:
    """A gang on three nodes."""

    def __init__(self, tmp_path: Path, fenced: float = 0.0) -> None:
        self.parts = LeaderParts(tmp_path, procs_per_node=2)
        self.parts.arrive()
        self.sent_messages, self.attempt = self.parts.sent, self.parts.attempt
        self.sent_messages.peers = ["10.0.0.1"]
        self.gang = Gang(self.parts.context, LeaderServices(self.parts.context), fenced)
        self.end = asyncio.ensure_future(self.gang.run(["true"], {}, "/"))

    async def started(self) -> Running:
        while len(self.sent_messages.of(StartProcesses)) < 3:
            await asyncio.sleep(0.01)
        return self

    def failed(self, node: int, rank: int, code: int = 1, cycle: int = 0, silent: float | None = None) -> None:
        how = f"exited with {code}" if silent is None else "hung"
        self.gang.on_message(node, RankFailed(rank, code, how, silent, cycle))

    def ended(self, *nodes: int, cycle: int = 0) -> None:
        for node in nodes:
            self.gang.on_message(node, ProcessesEnded(cycle))

    async def exit(self) -> Exit:
        return await asyncio.wait_for(self.end, 120)


@pytest.fixture
async def running(tmp_path: Path) -> Running:
    return await Running(tmp_path).started()


async def test_every_node_is_sent_its_part(running: Running) -> None:
    parts = [message.part for _, message in running.sent_messages.of(StartProcesses)]
    assert [(part.node, part.nodes, part.procs, part.address) for part in parts] == [
        (node, 3, 2, "10.0.0.1") for node in range(3)
    ]
    running.ended(0, 1, 2)
    assert str(await running.exit()) == "exited with 0"


async def test_the_first_failure_is_reported_and_ends_all(running: Running) -> None:
    running.failed(1, rank=3, code=7)
    running.failed(2, rank=4, code=1)
    assert [(node, message.grace) for node, message in running.sent_messages.of(EndProcesses)] == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]
    running.ended(0, 1, 2)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (7, "failed: rank 3 on n1 exited with 7")
    assert running.gang.failure_source(0) == (1, running.attempt.rank_log(3, 0))


async def test_reports_of_another_cycle_change_nothing(running: Running) -> None:
    running.failed(1, rank=3, cycle=1)
    running.ended(0, 1, 2, cycle=1)
    assert running.sent_messages.of(EndProcesses) == []
    running.ended(0, 1, 2)
    assert (await running.exit()).shell_code == 0


async def test_a_lost_node_is_not_waited_for_and_is_no_success(running: Running) -> None:
    running.ended(0, 2)
    running.gang.on_node_lost(1, 0.0)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (125, "failed: n1 was lost")


async def test_the_rank_that_hung_first_is_named_once_the_stacks_are_written(running: Running) -> None:
    running.failed(2, rank=4, silent=10.0)
    running.failed(1, rank=3, silent=12.0)
    await asyncio.sleep(0.05)
    assert running.sent_messages.of(EndProcesses) == []  # stacks are written before processes are ended
    running.sent_messages.stacks.set_result([True])
    while not running.sent_messages.of(EndProcesses):
        await asyncio.sleep(0.01)
    running.ended(0, 1, 2)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (1, "failed: rank 3 on n1 hung; see logs/stacks-*.txt")
    assert running.sent_messages.of(SignalProcesses) == []


async def test_a_hung_rank_that_ends_with_0_while_the_stacks_are_written_has_ended(running: Running) -> None:
    running.failed(2, rank=4, silent=10.0)
    running.gang.on_message(2, HungRankEnded(4, cycle=0))
    running.sent_messages.stacks.set_result([False])
    await wait_until(lambda: running.gang._dumping is None)
    assert running.sent_messages.of(EndProcesses) == running.sent_messages.of(SignalProcesses) == []
    running.ended(0, 1, 2)
    assert str(await running.exit()) == "exited with 0" and running.gang.completed


async def test_a_rank_that_hangs_after_another_was_only_slow_ends_the_gang(running: Running) -> None:
    running.failed(2, rank=4, silent=10.0)
    running.gang.on_message(2, HungRankEnded(4, cycle=0))
    running.sent_messages.stacks.set_result([True])
    await wait_until(lambda: running.gang._dumping is None)
    running.failed(1, rank=3, silent=5.0)
    await wait_until(lambda: running.sent_messages.of(EndProcesses))
    running.ended(0, 1, 2)
    assert str(await running.exit()) == "failed: rank 3 on n1 hung; see logs/stacks-*.txt"
    assert not running.gang.completed


async def test_a_failure_while_the_stacks_are_written_follows_from_the_hang(running: Running) -> None:
    running.failed(2, rank=4, silent=10.0)
    running.failed(1, rank=3, code=7)
    assert running.sent_messages.of(EndProcesses) == []
    running.sent_messages.stacks.set_result([True])
    await wait_until(lambda: running.sent_messages.of(EndProcesses))
    running.ended(0, 1, 2)
    assert str(await running.exit()) == "failed: rank 4 on n2 hung; see logs/stacks-*.txt"


async def test_a_failure_counts_if_the_hung_rank_ended_with_0(running: Running) -> None:
    running.failed(2, rank=4, silent=10.0)
    running.failed(1, rank=3, code=7)
    running.gang.on_message(2, HungRankEnded(4, cycle=0))
    running.sent_messages.stacks.set_result([True])
    await wait_until(lambda: running.sent_messages.of(EndProcesses))
    running.ended(0, 1, 2)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (7, "failed: rank 3 on n1 exited with 7")


async def test_a_node_that_cannot_end_its_processes_does_not_hold_the_others(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", -1.5)  # half a second after EndProcesses
    running.failed(1, rank=3, code=7)
    running.ended(0, 1)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (
        7,
        "failed: rank 3 on n1 exited with 7; processes on n2 could not be ended",
    )


async def test_a_later_shorter_grace_cuts_an_earlier_one_short(running: Running) -> None:
    for grace in (30.0, 5.0, 20.0):
        running.gang.end(grace)
    assert [message.grace for node, message in running.sent_messages.of(EndProcesses) if node == 0] == [30.0, 5.0, 5.0]
    running.ended(0, 1, 2)
    await running.exit()


async def test_a_gang_that_is_ended_before_it_begins_starts_nothing(tmp_path: Path) -> None:
    early = Running(tmp_path)
    early.gang.end(1.0)
    assert (await early.exit()).shell_code == 143
    assert early.sent_messages.sent == []


async def test_a_gang_starts_when_an_older_one_has_ended_for_sure_on_a_lost_node(tmp_path: Path) -> None:
    fenced = time.monotonic() + 0.3
    running = Running(tmp_path, fenced)
    await running.started()
    assert time.monotonic() >= fenced and "lost node" in running.parts.phases()
    running.ended(0, 1, 2)
    assert (await running.exit()).shell_code == 0


async def test_a_gang_that_is_ended_while_it_waits_for_that_starts_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path, time.monotonic() + 1000)
    await asyncio.sleep(0)
    running.gang.end(1.0)
    assert (await running.exit()).shell_code == 143
    assert running.sent_messages.sent == []
