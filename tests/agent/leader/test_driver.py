"""The driver's process: its log, its end, signals, and whether it ended by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.agent.leader.leader_doubles import wait_until

from muster.agent.control.connections import AgentMessage
from muster.agent.control.messages import ProcessesEnded, UnendedProcess
from muster.agent.leader.driver import Driver, mark_cycle
from muster.agent.leader.inbox import Inbox
from muster.exit_codes import NOT_STARTED
from muster.process import Exit, LeftoverProcess, Log

DEADLINE_S = 120.0
ENV = {"PATH": os.environ["PATH"]}


class Started:
    """A driver that runs a shell command."""

    def __init__(self, directory: Path, command: str) -> None:
        self.log, self.directory, self.inbox = directory / "driver.log", directory, Inbox()
        self.driver = Driver(Log(str(self.log), 1 << 30), self.inbox, 3)
        self.running = asyncio.ensure_future(self.driver.run(["sh", "-c", command], ENV, str(directory)))

    async def exit(self) -> Exit:
        return await asyncio.wait_for(self.running, DEADLINE_S)

    async def ready(self) -> None:
        await wait_until((self.directory / "ready").exists)


async def test_a_driver_that_ends_by_itself_has_completed(tmp_path: Path) -> None:
    started = Started(tmp_path, "echo words; exit 3")
    assert (await started.exit()).shell_code == 3
    assert started.driver.completed and started.log.read_text() == "words\n"
    assert started.driver.failure_source(5) == (5, str(started.log))


async def test_a_driver_that_was_asked_to_end_has_not_completed_whatever_its_code(tmp_path: Path) -> None:
    started = Started(tmp_path, "trap 'exit 0' TERM; touch ready; while :; do sleep 0.05; done")
    await started.ready()
    started.driver.end(60.0)
    assert (await started.exit()).shell_code == 0 and not started.driver.completed


async def test_a_driver_that_is_ended_after_its_exit_has_completed(tmp_path: Path) -> None:
    started = Started(tmp_path, "exit 0")
    await wait_until(lambda: started.driver.completed)
    started.driver.end(0.0)
    assert (await started.exit()).shell_code == 0 and started.driver.completed


async def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    started = Started(tmp_path, "trap 'exit 7' USR1; touch ready; while :; do sleep 0.05; done")
    await started.ready()
    started.driver.signal(signal.SIGUSR1)
    assert (await started.exit()).shell_code == 7


async def test_a_command_that_cannot_be_started_is_explained_in_the_log(tmp_path: Path) -> None:
    driver = Driver(Log(str(tmp_path / "driver.log")), Inbox(), 0)
    exit = await asyncio.wait_for(driver.run([str(tmp_path / "none")], ENV, str(tmp_path)), DEADLINE_S)
    assert exit.shell_code == NOT_STARTED and "could not be started" in (tmp_path / "driver.log").read_text()
    await asyncio.wait_for(driver.close(), DEADLINE_S)


async def test_a_driver_that_is_closed_before_its_start_starts_nothing(tmp_path: Path) -> None:
    driver = Driver(Log(str(tmp_path / "driver.log")), Inbox(), 0)
    driver.end(0.0)
    await asyncio.wait_for(driver.close(), DEADLINE_S)
    exit = await asyncio.wait_for(driver.run(["true"], ENV, str(tmp_path)), DEADLINE_S)
    assert exit.shell_code == 143 and not driver.completed


async def test_a_process_that_could_not_be_ended_is_posted_as_a_report_of_this_node(tmp_path: Path) -> None:
    started = Started(tmp_path, "exit 0")
    left = LeftoverProcess(4711, "sleep", "D")
    started.driver.processes_left([left])
    event = await started.inbox.next()
    assert event == AgentMessage(3, UnendedProcess(str(left)))
    await started.exit()


async def test_reports_of_a_gang_and_lost_nodes_are_nothing_to_a_driver(tmp_path: Path) -> None:
    started = Started(tmp_path, "exit 0")
    started.driver.on_node_lost(1, 12.0)
    started.driver.on_message(1, ProcessesEnded(0))
    assert (await started.exit()).shell_code == 0


def test_cycles_are_separated_in_the_log_by_their_reason(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    assert mark_cycle(str(log), 0, "") == 0
    assert mark_cycle(str(log), 1, "n1 is lost\nmore") == len(log.read_text())
    mark_cycle(str(log), 2, "")
    assert log.read_text() == "muster: cycle 1: n1 is lost\nmuster: cycle 2: restarted\n"
    assert mark_cycle(str(tmp_path / "none" / "log"), 1, "") == 0
