"""The leader's side of a gang: which failure it reports, and for which nodes it waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.agent.leader.gang_doubles import JOB, SentMessages

from muster.agent.job import Identity
from muster.agent.leader import gang as module
from muster.agent.leader.gang import Gang
from muster.lifecycle import events as m
from muster.lifecycle.state_machine import RunConfig, RunStateMachine
from muster.process import Exit
from muster.rundir import RunPaths

HOSTS = ["n0", "n1", "n2"]


class Running:
    """A gang on three nodes."""

    def __init__(self, tmp_path: Path, fenced: float = 0.0) -> None:
        run = RunPaths(str(tmp_path / "run-20260101T000000-ab12"))
        (Path(run.attempt(0).root) / "logs").mkdir(parents=True)
        identity = Identity(rank=0, host="n0", run=run, attempt=run.attempt(0), local=True)
        protocol = RunStateMachine(RunConfig(hosts=HOSTS, ray=False), 0.0)
        for rank, host in enumerate(HOSTS):
            protocol.handle(m.Arrived(rank, host), 0.0)
        self.sent_messages = SentMessages()
        self.gang = Gang(identity, JOB, self.sent_messages, protocol, self._address, lambda: fenced)  # type: ignore[arg-type]
        self.attempt = identity.attempt
        self.end = asyncio.ensure_future(self.gang.run(["true"], {}, "/"))

    async def _address(self) -> str:
        return "10.0.0.1"

    async def started(self) -> Running:
        while len(self.sent_messages.of("start_procs")) < 3:
            await asyncio.sleep(0.01)
        return self

    def failed(self, node: int, rank: int, code: int = 1, cycle: int = 0, silent: float | None = None) -> None:
        how = f"exited with {code}" if silent is None else "hung"
        report = {"type": "proc_failed", "rank": rank, "code": code, "how": how, "silent": silent, "cycle": cycle}
        self.gang.on_message(node, report)

    def ended(self, *nodes: int, cycle: int = 0) -> None:
        for node in nodes:
            self.gang.on_message(node, {"type": "procs_ended", "cycle": cycle})

    async def exit(self) -> Exit:
        return await asyncio.wait_for(self.end, 120)


@pytest.fixture
async def running(tmp_path: Path) -> Running:
    return await Running(tmp_path).started()


async def test_every_node_is_sent_its_part(running: Running) -> None:
    parts = [fields["part"] for _, fields in running.sent_messages.of("start_procs")]
    assert [(part["node"], part["nodes"], part["procs"], part["address"]) for part in parts] == [
        (node, 3, 2, "10.0.0.1") for node in range(3)
    ]
    running.ended(0, 1, 2)
    assert str(await running.exit()) == "exited with 0"


async def test_the_first_failure_is_reported_and_ends_all(running: Running) -> None:
    running.failed(1, rank=3, code=7)
    running.failed(2, rank=4, code=1)
    assert [(node, fields["grace"]) for node, fields in running.sent_messages.of("end_procs")] == [
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
    assert running.sent_messages.of("end_procs") == []
    running.ended(0, 1, 2)
    assert (await running.exit()).shell_code == 0


async def test_a_lost_node_is_not_waited_for_and_is_no_success(running: Running) -> None:
    running.ended(0, 2)
    running.gang.on_node_lost(1)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (125, "failed: n1 was lost")


async def test_the_rank_that_hung_first_is_named_once_the_stacks_are_written(running: Running) -> None:
    running.failed(2, rank=4, silent=10.0)
    running.failed(1, rank=3, silent=12.0)
    await asyncio.sleep(0.05)
    assert running.sent_messages.of("end_procs") == []  # stacks are written before processes are ended
    running.sent_messages.stacks.set_result([True])
    while not running.sent_messages.of("end_procs"):
        await asyncio.sleep(0.01)
    running.ended(0, 1, 2)
    exit = await running.exit()
    assert (exit.shell_code, str(exit)) == (1, "failed: rank 3 on n1 hung; see logs/stacks-*.txt")
    assert running.sent_messages.of("signal_procs") == []


async def test_a_node_that_cannot_end_its_processes_does_not_hold_the_others(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", -1.5)  # half a second after end_procs
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
    assert [fields["grace"] for node, fields in running.sent_messages.of("end_procs") if node == 0] == [30.0, 5.0, 5.0]
    running.ended(0, 1, 2)
    await running.exit()


async def test_a_gang_that_is_ended_before_it_begins_starts_nothing(tmp_path: Path) -> None:
    early = Running(tmp_path)
    early.gang.end(1.0)
    assert (await early.exit()).shell_code == 143
    assert early.sent_messages.sent == []


async def test_a_gang_starts_when_an_older_one_has_ended_for_sure_on_a_lost_node(tmp_path: Path) -> None:
    notes: list[str] = []
    fenced = time.monotonic() + 0.3
    running = Running(tmp_path, fenced)
    running.gang.on_note = notes.append
    await running.started()
    assert time.monotonic() >= fenced and "lost node" in notes[0]
    running.ended(0, 1, 2)
    assert (await running.exit()).shell_code == 0


async def test_a_gang_that_is_ended_while_it_waits_for_that_starts_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path, time.monotonic() + 1000)
    await asyncio.sleep(0)
    running.gang.end(1.0)
    assert (await running.exit()).shell_code == 143
    assert running.sent_messages.sent == []
