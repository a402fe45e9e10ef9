"""A node's Ray: which releases it accepts, and that a stop at any time leaves no process, port or file."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.agent.log_collection import GROUP_NODES, GROUP_PAUSE_S, LogCollection
from muster.agent.ray import node
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.node import (
    HeadAddressKnown,
    RayEvent,
    RayFailed,
    RayImported,
    RayNode,
    RayNote,
    RaySetup,
    RayStartRequest,
)
from muster.agent.ray.settings import RayOptions
from muster.ports.blocks import LOCAL_BLOCK_SIZE, HeldBlock, take_block
from muster.ports.guards import bind

BUSY_S = 120.0  # for a whole test, on a machine that is busy
LONG_S = 10 * BUSY_S
NO_LOGS = LogCollection(failed=True, after=0.0, seconds=0.0)


class Watched:
    """A node whose starter never completes the import of Ray; killing it is a failure that is retried."""

    def __init__(self, directory: Path, rank: int = 0, logs: str = "never", affinity: str | None = None) -> None:
        (directory / "slow").mkdir()
        (directory / "slow" / "ray.py").write_text("import time; time.sleep(1000)")
        self.block = take_block(str(directory), LOCAL_BLOCK_SIZE)
        self.block.release()
        options = RayOptions(1, 1, False, 1, local=True, port_base=self.block.block.base, logs=logs)
        options = replace(options, gpu_affinity_file=affinity)
        path = os.pathsep.join([str(directory / "bin"), os.environ["PATH"]])
        env = {**os.environ, "PYTHONPATH": str(directory / "slow"), "PATH": path}
        setup = RaySetup(str(directory / "temp" / "ray"), str(directory / "archive"), env, b"token")
        self.temp = directory / "temp"
        self.ray = RayNode(options, NodeFacts(rank, "n0", node_index=0), setup, self._posted)
        self.noted, self.failed = asyncio.Event(), asyncio.Event()
        self.events: list[RayEvent] = []

    def _posted(self, event: RayEvent) -> None:
        self.events.append(event)
        if isinstance(event, RayNote) and "follows" in event.text:
            self.noted.set()
        elif isinstance(event, RayFailed):
            self.failed.set()

    def head_addresses(self) -> int:
        """Return how often the address of the head was posted: at each start of Ray."""
        return sum(isinstance(event, HeadAddressKnown) for event in self.events)

    async def fail_once(self) -> None:
        """Begin the first attempt and let it fail."""
        await self.ray.warm()
        assert self.ray._attempt is not None
        self.commands = self.ray._attempt._commands
        os.kill(self.ray._attempt._starter.pid, signal.SIGKILL)
        await self.noted.wait()

    async def first_attempt_is_over(self) -> None:
        await until(lambda: not (self.temp / "ray.0").exists() and not is_open(self.commands))

    async def stop(self) -> None:
        """Stop Ray, and check that directory, supervisors (which name it) and ports are released."""
        await asyncio.wait_for(self.ray.stop(NO_LOGS), BUSY_S)
        assert not self.temp.exists()
        await until(lambda: not self.supervisors())
        guard = bind(self.block.block.guard)
        assert guard is not None
        guard.close()

    def supervisors(self) -> list[str]:
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and str(self.temp) in command_line(pid)]


def command_line(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


async def until(condition: Callable[[], Any]) -> None:
    async def watch() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(watch(), BUSY_S)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError as error:
        assert error.errno == errno.EBADF
        return False
    return True


def take_number(number: int) -> None:
    """Occupy the descriptor as the next file or socket of the agent would."""
    assert not is_open(number)
    other = os.open("/dev/null", os.O_RDONLY)
    if other != number:
        os.dup2(other, number)
        os.close(other)


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_a_stop_during_the_back_off_closes_no_descriptor_that_has_got_the_same_number(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "START_BACKOFF_S", LONG_S)
    await watched.fail_once()
    await watched.first_attempt_is_over()
    take_number(watched.commands)
    await watched.stop()
    assert is_open(watched.commands)
    os.close(watched.commands)


async def test_a_stop_after_a_retry_could_not_begin_ends_nothing_twice(watched: Watched) -> None:
    await watched.ray.warm()
    other = bind(watched.block.block.gcs)  # the first attempt no longer checks whether it is free
    assert other is not None and watched.ray._attempt is not None
    watched.commands = watched.ray._attempt._commands
    os.kill(watched.ray._attempt._starter.pid, signal.SIGKILL)
    await asyncio.wait_for(watched.failed.wait(), BUSY_S)
    take_number(watched.commands)
    await watched.stop()
    assert is_open(watched.commands)
    os.close(watched.commands)
    other.close()


async def test_a_stop_while_a_failed_attempt_waits_for_its_turn_to_keep_logs_does_not_wait(tmp_path: Path) -> None:
    watched = Watched(tmp_path, rank=int(LONG_S / GROUP_PAUSE_S) * GROUP_NODES, logs="always")
    await watched.fail_once()
    await until(lambda: not is_open(watched.commands) and not watched.supervisors())
    assert (watched.temp / "ray.0").exists()
    await watched.stop()


async def test_a_stop_while_a_retry_begins_leaves_no_supervisor(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    def take(*args: Any, **options: Any) -> HeldBlock:
        asyncio.get_running_loop().call_soon(began.set)  # when its supervisor is being started
        return take_block(*args, **options)

    monkeypatch.setattr(node, "START_BACKOFF_S", 0.0)
    await watched.fail_once()
    monkeypatch.setattr(node, "take_block", take)
    await asyncio.wait_for(began.wait(), BUSY_S)
    await watched.stop()


async def test_the_next_attempt_starts_ray_as_the_leader_has_requested(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "START_BACKOFF_S", 0.0)
    await watched.ray.warm()
    watched.ray.start(RayStartRequest("127.0.0.1", None, 0))
    await until(lambda: watched.head_addresses() == 1)
    first = watched.ray._attempt
    assert first is not None
    os.kill(first._starter.pid, signal.SIGKILL)
    await until(lambda: watched.head_addresses() == 2)
    assert watched.ray._attempt is not first
    await watched.stop()


async def test_a_stop_can_be_repeated(watched: Watched) -> None:
    await watched.ray.warm()
    assert watched.ray._attempt is not None
    number = watched.ray._attempt._commands
    await watched.stop()
    take_number(number)
    await watched.stop()
    assert is_open(number)
    os.close(number)


async def test_a_release_that_cannot_be_used_is_a_failure_without_another_attempt(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched.ray, "_check_version", lambda version: f"{version} is too old")
    await watched.ray.warm()
    assert watched.ray._attempt is not None
    watched.ray._attempt.events.put_nowait(RayImported("2.0.0"))
    await asyncio.wait_for(watched.failed.wait(), BUSY_S)
    assert watched.events == [RayFailed("2.0.0 is too old")]
    await watched.stop()


@pytest.mark.parametrize(
    ("version", "required", "rank", "refused", "warned"),
    [
        ("2.46.0", False, 0, False, True),
        ("2.51.2", False, 0, False, True),
        ("2.51.2", False, 7, False, False),  # the first node has said it for all
        ("2.51.2", True, 7, True, False),
        ("2.52.0", True, 0, False, False),
        ("3.0.0.dev0", True, 0, False, False),
    ],
)
async def test_a_ray_without_tokens_is_warned_about_once_and_refused_where_they_are_required(
    version: str, required: bool, rank: int, refused: bool, warned: bool
) -> None:
    options = RayOptions(cpus=1, gpus=None, dashboard=False, nodes=8, local=True, require_auth=required)
    notes: list[RayEvent] = []
    setup = RaySetup("/tmp/muster-x/0", "/runs/x", {}, b"token")
    ray = RayNode(options, NodeFacts(rank, "n"), setup, notes.append)
    why = ray._check_version(version)
    assert (why is not None and "--require-auth" in why) == refused
    assert bool(notes) == warned


async def test_the_affinity_file_is_written_before_ray_starts_and_removed_with_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '\\tGPU0\\tCPU Affinity\\nGPU0\\t X \\t0-3\\n'\n")
    program.chmod(0o755)
    file = tmp_path / "affinity"
    watched = Watched(tmp_path, affinity=str(file))
    await watched.ray.warm()
    watched.ray.start(RayStartRequest("127.0.0.1", None, 0))
    await until(lambda: watched.head_addresses() == 1)
    assert file.read_text() == "0:0-3\n"
    await watched.stop()
    assert not file.exists()


async def test_a_node_that_cannot_write_the_affinity_file_starts_with_a_note(tmp_path: Path) -> None:
    watched = Watched(tmp_path, affinity=str(tmp_path / "missing" / "affinity"))
    await watched.ray.warm()
    watched.ray.start(RayStartRequest("127.0.0.1", None, 0))
    await until(lambda: watched.head_addresses() == 1)
    assert any(isinstance(event, RayNote) and "is not written" in event.text for event in watched.events)
    await watched.stop()
