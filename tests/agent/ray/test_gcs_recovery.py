"""Restarts of a GCS, with a stand-in that listens on its port as soon as it has started, or exits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.free_port import free_port

from muster.agent.ray import gcs_recovery, restart_budget
from muster.agent.ray.gcs_recovery import GcsRecovered, GcsRecovery, ProcessCommand
from muster.process import Exit, Scope

DEADLINE_S = 120.0
KILLED = Exit(signal=signal.SIGKILL)
# Appends its pid and the variable to a file; then it exits, listens, or sleeps: as the file `how` says.
SERVER = """
import os, socket, sys, time
with open("starts", "a") as file:
    print(os.getpid(), os.environ["MARK"], file=file)
how = open("how").read()
if how == "exits":
    sys.exit(3)
if how == "listens":
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(1000)
"""


class Server:
    """The stand-in, its recovery, and what that has posted."""

    def __init__(self, directory: Path, port: int, scope: Scope) -> None:
        self.directory = directory
        argv = (sys.executable, "-c", SERVER, str(port))
        self.command = ProcessCommand(argv, {"MARK": "kept", "PATH": os.defpath}, str(directory))
        self.posted: list[GcsRecovered] = []
        self.recovery = GcsRecovery(scope, self.command, ("127.0.0.1", port), self.posted.append)
        self.behave("listens")

    def behave(self, how: str) -> None:
        (self.directory / "how").write_text(how)

    def starts(self) -> list[list[str]]:
        path = self.directory / "starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    async def kill(self) -> None:
        os.kill(int(self.starts()[-1][0]), signal.SIGKILL)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Scope("gcs", lost_owner_grace=0.0) as scope:
        yield Server(tmp_path, free_port(), scope)


async def until(condition: Callable[[], object]) -> None:
    async def watch() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(watch(), DEADLINE_S)


async def result(running: asyncio.Task[str]) -> str:
    return await asyncio.wait_for(running, DEADLINE_S)


async def test_it_is_started_again_with_the_same_command_and_environment_whenever_it_ends(server: Server) -> None:
    running = asyncio.create_task(server.recovery.run(KILLED))
    for restart in (1, 2):
        await until(lambda restart=restart: len(server.posted) == restart)
        last = server.posted[-1]
        assert (last.restarts, last.reason) == (restart, f"Ray's gcs_server {KILLED}") and last.seconds > 0
        assert [mark for _, mark in server.starts()] == ["kept"] * restart
        await server.kill()
    running.cancel()


async def test_one_that_cannot_start_is_given_up_with_the_first_reason_and_the_last(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_budget, "FIRST_PAUSE_S", 0.0)
    server.behave("exits")
    reason = await result(asyncio.create_task(server.recovery.run(KILLED)))
    assert reason == (
        f"Ray's gcs_server {KILLED}, and is not restarted: 5 restarts in a row failed; "
        "the last one: Ray's gcs_server exited with 3"
    )
    assert not server.posted and len(server.starts()) == restart_budget.MAX_FAILED_STARTS


async def test_one_that_fails_once_is_tried_again_and_the_outage_counts_from_its_first_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_budget, "FIRST_PAUSE_S", 0.1)
    server.behave("exits")
    running = asyncio.create_task(server.recovery.run(KILLED))
    await until(server.starts)
    server.behave("listens")
    await until(lambda: server.posted)
    assert server.posted[0].reason == f"Ray's gcs_server {KILLED}" and server.posted[0].seconds >= 0.1
    assert server.posted[0].restarts == len(server.starts()) >= 2
    running.cancel()


async def test_one_that_does_not_listen_is_given_up_before_raylets_and_drivers_do(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_recovery, "OUTAGE_LIMIT_S", 0.2)
    server.behave("hangs")
    reason = await result(asyncio.create_task(server.recovery.run(KILLED)))
    assert reason == f"Ray's gcs_server {KILLED}, and after its restart it did not answer for 0.2 s"


async def test_a_program_that_is_gone_is_the_reason(server: Server) -> None:
    server.recovery._command = replace(server.command, argv=("/no/such/gcs_server",))
    reason = await result(asyncio.create_task(server.recovery.run(KILLED)))
    assert reason.startswith(f"Ray's gcs_server {KILLED}, and could not be restarted: ") and "/no/such" in reason


async def test_the_command_of_a_running_process_is_read_with_its_environment_and_directory(tmp_path: Path) -> None:
    env = {"EMPTY": "", "EQUALS": "a=b", "LINES": "one\ntwo"}
    process = await asyncio.create_subprocess_exec("/bin/sleep", "1000", cwd=tmp_path, env=env)
    assert ProcessCommand.of(process.pid) == ProcessCommand(("/bin/sleep", "1000"), env, str(tmp_path))
    process.kill()
    await process.wait()
    with pytest.raises(OSError):
        ProcessCommand.of(process.pid)


def test_the_state_is_below_the_directory_of_the_attempt() -> None:
    assert gcs_recovery.storage_directory("/tmp/muster-x/0.0.1.0") == "/tmp/muster-x/0.0.1.0/gcs"
