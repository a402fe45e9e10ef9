"""One node's part in a gang: what its processes find, and what is reported of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.messages import HungRankEnded, ProcessesEnded, RankFailed, StartProcesses
from muster.agent.gang import gang_node
from muster.agent.gang.gang_node import GangNode
from muster.agent.gang_part import GangPart
from muster.agent.job import Identity, Job
from muster.rundir import RunPaths

FIELDS = {"groups": [], "nodes": 2, "spares": 0, "ray": False, "max_restarts": 0, "large_from": 64}
PART = GangPart(cycle=0, node=1, nodes=2, procs=2, address="127.0.0.1", port=29400)


class Started:
    """Node 1 of a gang of two nodes with two processes each, and the messages that it sends to the leader."""

    def __init__(self, tmp_path: Path, command: str, **fields: Any) -> None:
        run = RunPaths(str(tmp_path / "run-20260101T000000-ab12"))
        self.identity = Identity(node_index=1, host="n1", run=run, attempt=run.attempt(0), local=True)
        Path(self.identity.attempt.root).mkdir(parents=True)
        job = {**dict.fromkeys(Job.__dataclass_fields__), **FIELDS, "workdir": str(tmp_path), **fields}
        Path(run.job).write_text(json.dumps({**job, "command": ["bash", "-c", command]}))
        Path(run.env).write_text("{}")
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        request = StartProcesses(PART, None, "a node was lost", {"MUSTER_SERVICE_WEB": "http://n0:80"})
        self.node = GangNode(self.identity, request, self.messages.put_nowait)

    async def next(self) -> Message:
        return await asyncio.wait_for(self.messages.get(), 120)

    async def failure(self) -> RankFailed:
        message = await self.next()
        assert isinstance(message, RankFailed)
        return message

    def log(self, rank: int) -> str:
        return Path(self.identity.attempt.rank_log(rank, 0)).read_text()


async def test_every_process_has_its_rank_and_log_and_the_end_of_all_is_reported(tmp_path: Path) -> None:
    started = Started(tmp_path, "echo $RANK $MUSTER_RESTART_REASON, $MUSTER_SERVICE_WEB")
    assert await started.next() == ProcessesEnded(0)
    assert started.log(2) == "2 a node was lost, http://n0:80\n"
    assert started.log(3) == "3 a node was lost, http://n0:80\n"


async def test_only_the_first_failure_is_reported_and_the_others_run_until_they_are_ended(tmp_path: Path) -> None:
    started = Started(tmp_path, "[ $RANK = 3 ] && exit 5; sleep 1000")
    failed = await started.failure()
    assert (failed.rank, failed.exit_code, failed.how) == (3, 5, "exited with 5")
    started.node.end(5.0)
    assert await started.next() == ProcessesEnded(0)


async def test_a_signal_reaches_every_process(tmp_path: Path) -> None:
    command = "trap 'echo signalled; exit 0' USR1; touch ready-$RANK; while :; do sleep 0.05; done"
    started = Started(tmp_path, command)
    while not all((tmp_path / f"ready-{rank}").exists() for rank in (2, 3)):
        await asyncio.sleep(0.02)
    started.node.signal(10)
    assert await started.next() == ProcessesEnded(0)
    assert "signalled" in started.log(2) and "signalled" in started.log(3)


async def test_a_process_without_output_or_beat_is_reported_as_hung(tmp_path: Path) -> None:
    started = Started(tmp_path, "while [ $RANK = 2 ]; do echo; sleep 0.1; done; sleep 1000", stall_timeout=2.0)
    failed = await started.failure()
    assert (failed.rank, failed.exit_code) == (3, gang_node.HUNG_EXIT_CODE)
    assert (
        failed.silent is not None
        and failed.silent >= 2.0
        and failed.how == "hung: no output and no muster.beat() for 2 s"
    )
    await started.node.close()


async def test_a_command_that_does_not_exist_fails_with_a_shell_s_code(tmp_path: Path) -> None:
    started = Started(tmp_path, "", workdir=str(tmp_path / "missing"))
    failed = await started.failure()
    assert failed.exit_code == 127
    assert "could not be started" in started.log(2)
    assert await started.next() == ProcessesEnded(0)


async def test_a_hung_process_that_ends_with_0_is_reported(tmp_path: Path) -> None:
    waiting = "while [ ! -e go ]; do [ $RANK = 2 ] && echo; sleep 0.05; done"
    started = Started(tmp_path, waiting, stall_timeout=2.0)
    assert (await started.failure()).rank == 3
    (tmp_path / "go").touch()
    assert await started.next() == HungRankEnded(3, 0)
    assert await started.next() == ProcessesEnded(0)


async def test_a_failure_after_a_hang_is_reported_too(tmp_path: Path) -> None:
    waiting = "while [ ! -e go ]; do [ $RANK = 2 ] && echo; sleep 0.05; done; exit $RANK"
    started = Started(tmp_path, waiting, stall_timeout=2.0)
    assert (await started.failure()).silent is not None
    (tmp_path / "go").touch()
    failed = await started.failure()
    assert failed.exit_code == failed.rank and failed.silent is None
    assert await started.next() == ProcessesEnded(0)
