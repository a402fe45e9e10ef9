"""One attempt to start Ray, with a small stand-in for the `ray` package: each way to start, to fail and to stop.

The starter, its scope and the daemons are real processes; tests/local has the same with Ray itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.running import wait_for

from muster.agent.ray import node
from muster.agent.ray.gcs_recovery import GcsRecovered, ProcessCommand, storage_directory
from muster.agent.ray.node import AttemptEvent, NodesAlive, RayImported, RayRunning, StartAttempt, StartFailure
from muster.agent.ray.session_logs import ArchiveOptions
from muster.agent.ray.starter import NODE_LABEL
from muster.ports.blocks import LOCAL_BLOCK_SIZE, take_block
from muster.ports.guards import bind
from muster.process import descendants
from muster.rundir.tokens import derive_ray_token

DEADLINE_S = 120.0
NODES = [0, 2]  # in the stand-in's node table

# `ray start` starts the daemons that its arguments name, writes a log, and exits with the code of --exit=N.
RAY = {
    "ray/__init__.py": "__version__ = '2.52.1'",
    "ray/_raylet.py": f"""
class Node:
    state = 0
    def __init__(self, number):
        self.labels = {{{NODE_LABEL!r}: str(number)}}
class GcsClient:
    def __init__(self, address): pass
    def get_all_node_info(self): return {{number: Node(number) for number in {NODES}}}
""",
    "ray/_private/__init__.py": "",
    "ray/_private/parameter.py": "class RayParams:\n    def __init__(self, **fields): pass",
    "ray/_private/services.py": """
import os
GCS_SERVER_EXECUTABLE = os.path.join(os.path.dirname(__file__), 'gcs_server')
def get_node(address, node_id): return {}
""",
    "ray/_private/gcs_server": "a program with the setting RAY_gcs_storage_path",
    "ray/scripts/__init__.py": "",
    "ray/scripts/scripts.py": """
import os, subprocess, sys
class start:
    def main(args, **options):
        options = dict(arg.lstrip('-').split('=', 1) for arg in args)
        logs = os.path.join(options['temp-dir'], 'session_latest', 'logs')
        os.makedirs(logs)
        with open(os.path.join(logs, 'raylet.out'), 'w') as file:
            file.write('a line of the raylet')
        with open(os.path.join(options['bin'], 'system-config'), 'w') as file:
            file.write(options.get('system-config', ''))
        for name in filter(None, options['daemons'].split(',')):
            daemon = subprocess.Popen([os.path.join(options['bin'], name), '1000'], start_new_session=True)
            with open(os.path.join(options['bin'], name + '.pid'), 'w') as file:
                file.write(str(daemon.pid))
        sys.exit(int(options['exit']))
""",
}


class Attempt:
    """An attempt with the stand-in for Ray, and what it reports."""

    def __init__(self, directory: Path) -> None:
        self.bin, self.temp = directory / "bin", directory / "temp" / "ray.0"
        for name, text in RAY.items():
            path = directory / "library" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.bin.mkdir()
        for name in ("raylet", "gcs_server"):  # the name in /proc/<pid>/comm is that of the link
            (self.bin / name).symlink_to(shutil.which("sleep") or "sleep")
        self.held = take_block(str(directory), LOCAL_BLOCK_SIZE)
        env = {**os.environ, "PYTHONPATH": str(directory / "library")}
        self.attempt = StartAttempt(str(self.temp), b"token", env, self.held)
        self.events: list[AttemptEvent] = []  # that were read

    def start(self, daemons: str, exit: int = 0, gcs: tuple[str, int] | None = None, recovery: bool = False) -> None:
        args = [f"--temp-dir={self.temp}", f"--bin={self.bin}", f"--daemons={daemons}", f"--exit={exit}"]
        self.attempt.start(args, list(gcs) if gcs else None, len(NODES), recovery)

    async def read(self, kind: type[AttemptEvent]) -> AttemptEvent:
        """Read events until there was one of this kind; fail if the attempt does."""
        while not (found := [event for event in self.events if isinstance(event, (kind, StartFailure))]):
            self.events.append(await asyncio.wait_for(self.attempt.events.get(), DEADLINE_S))
        assert isinstance(found[-1], kind), self.events
        return found[-1]

    async def started(self) -> None:
        await self.read(RayRunning)

    async def failure(self) -> StartFailure:
        found = await self.read(StartFailure)
        assert isinstance(found, StartFailure)
        return found

    def pid(self, daemon: str) -> int:
        return int((self.bin / f"{daemon}.pid").read_text())


@pytest.fixture
async def new(tmp_path: Path) -> AsyncIterator[Attempt]:
    attempt = Attempt(tmp_path)
    yield attempt
    await asyncio.wait_for(attempt.attempt.stop(None), DEADLINE_S)


@pytest.fixture
async def warm(new: Attempt) -> Attempt:
    await new.attempt.warm()
    return new


async def until(condition: Callable[[], object]) -> None:
    async def watch() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(watch(), DEADLINE_S)


# -- a start --------------------------------------------------------------------------------------------------------


async def test_a_worker_has_started_when_ray_start_returns_and_its_raylet_runs(warm: Attempt) -> None:
    warm.start("raylet")
    await warm.started()
    assert warm.events == [RayImported("2.52.1"), RayRunning()]  # only the head knows the others
    assert warm.attempt.started and not warm.attempt.joined


async def test_a_head_reports_the_nodes_of_the_table_and_has_been_joined(warm: Attempt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        warm.start("raylet,gcs_server", gcs=gcs.getsockname())
        await warm.read(RayRunning)
        await warm.read(NodesAlive)
    assert NodesAlive(tuple(NODES)) in warm.events and warm.attempt.joined


async def test_ray_s_token_is_a_private_file_in_a_private_directory(warm: Attempt) -> None:
    token = Path(StartAttempt.token_file(str(warm.temp)))
    assert token.read_bytes() == derive_ray_token(b"token")
    assert token.stat().st_mode & 0o777 == 0o600 and warm.temp.stat().st_mode & 0o777 == 0o700


# -- failures -------------------------------------------------------------------------------------------------------


async def test_ray_start_with_an_error_may_be_retried(warm: Attempt) -> None:
    warm.start("", exit=3)
    assert await warm.failure() == StartFailure("`ray start` exited with 3", final=False)
    assert not warm.attempt.started


async def test_a_python_without_ray_is_a_final_failure_that_names_it(new: Attempt, tmp_path: Path) -> None:
    (tmp_path / "library" / "ray" / "__init__.py").write_text("raise ImportError('no ray here')")
    await new.attempt.warm()
    expected = f"Ray cannot be imported by {sys.executable}: no ray here (--python chooses another)"
    assert await new.failure() == StartFailure(expected, final=True)


async def test_arguments_that_ray_does_not_support_are_a_final_failure(warm: Attempt) -> None:
    warm.attempt.start(["--include-dashboard=true"], None, 1)
    failure = await warm.failure()
    assert failure.final and failure.reason.startswith("the dashboard needs the packages of ray[default]")


@pytest.mark.parametrize(("daemons", "missing"), [("", "raylet"), ("raylet", "gcs_server")])
async def test_a_daemon_that_is_gone_when_ray_start_returns_is_a_final_failure(
    warm: Attempt, daemons: str, missing: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        warm.start(daemons, gcs=gcs.getsockname())
        expected = f"Ray's {missing} was gone when `ray start` returned"
        assert await warm.failure() == StartFailure(expected, final=True)


async def test_the_end_of_a_daemon_after_the_start_is_a_failure(warm: Attempt) -> None:
    warm.start("raylet")
    await warm.started()
    os.kill(warm.pid("raylet"), signal.SIGKILL)
    failure = await warm.failure()
    assert failure.reason.startswith("Ray's raylet was ended by SIGKILL") and not failure.final


async def test_the_end_of_a_daemon_while_the_daemons_are_looked_up_is_a_failure(
    warm: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked up on a thread, since /proc may wait for a filesystem that hangs."""
    find = node._daemons_below

    def find_and_kill(supervisor: int) -> tuple[dict[int, str], ProcessCommand | None]:
        found = find(supervisor)
        os.kill(warm.pid("raylet"), signal.SIGKILL)
        wait_for("the report of its end", lambda: warm.attempt._early_exits)
        return found

    monkeypatch.setattr(node, "_daemons_below", find_and_kill)
    warm.start("raylet")
    assert (await warm.failure()).reason.startswith("Ray's raylet was ended by SIGKILL")


async def test_a_starter_that_ends_before_ray_start_returns_is_a_failure(warm: Attempt) -> None:
    os.kill(warm.attempt._starter.pid, signal.SIGKILL)
    failure = await warm.failure()
    assert failure.reason.startswith("the process that starts and watches Ray was ended by SIGKILL")
    warm.start("raylet")  # it cannot be asked any more, which is no further error


async def test_a_head_whose_starter_ends_before_all_nodes_have_joined_is_a_failure(warm: Attempt) -> None:
    warm.start("raylet,gcs_server", gcs=("127.0.0.1", warm.held.block.unused))  # nothing listens there
    await warm.started()
    os.kill(warm.attempt._starter.pid, signal.SIGKILL)
    assert (await warm.failure()).reason.startswith("the process that starts and watches Ray was ended by SIGKILL")


async def test_a_supervisor_that_was_killed_is_a_final_failure(warm: Attempt) -> None:
    os.kill(warm.attempt._scope.supervisor_pid, signal.SIGKILL)
    assert await warm.failure() == StartFailure("the supervisor of Ray's processes was killed", final=True)


# -- recovery of the GCS --------------------------------------------------------------------------------------------


def gcs_below(attempt: Attempt) -> int | None:
    """Return the pid of the GCS that runs."""
    for pid in descendants(attempt.attempt._scope.supervisor_pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "gcs_server\n":
                return pid
    return None


async def test_a_gcs_that_ends_is_restarted_with_its_state_until_the_stop(warm: Attempt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs:  # what the restarted stand-in would listen on
        warm.start("raylet,gcs_server", gcs=gcs.getsockname(), recovery=True)
        await warm.started()
        config = json.loads((warm.bin / "system-config").read_text())
        assert config == {"gcs_storage": "rocksdb", "gcs_storage_path": storage_directory(str(warm.temp))}
        before = warm.pid("gcs_server")
        for restart in (1, 2):
            os.kill(before, signal.SIGKILL)
            warm.events.clear()
            event = await warm.read(GcsRecovered)
            assert isinstance(event, GcsRecovered) and event.restarts == restart
            after = gcs_below(warm)
            assert after is not None and after != before
            before = after
    await warm.attempt.stop(None)
    assert (await warm.failure()).reason == "stopped"
    assert not Path(f"/proc/{before}").exists()


async def test_a_gcs_of_a_release_that_does_not_store_its_state_is_not_restarted(warm: Attempt, tmp_path: Path) -> None:
    (tmp_path / "library/ray/_private/gcs_server").write_text("another program")
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        warm.start("raylet,gcs_server", gcs=gcs.getsockname(), recovery=True)
        await warm.started()
        assert (warm.bin / "system-config").read_text() == ""
        os.kill(warm.pid("gcs_server"), signal.SIGKILL)
        assert (await warm.failure()).reason == (
            "Ray's gcs_server was ended by SIGKILL; "
            "its state was not stored (Ray 2.60 can do that), so it cannot be restarted"
        )


async def test_without_recovery_the_end_of_the_gcs_is_a_failure(warm: Attempt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        warm.start("raylet,gcs_server", gcs=gcs.getsockname())
        await warm.started()
        assert (warm.bin / "system-config").read_text() == ""
        os.kill(warm.pid("gcs_server"), signal.SIGKILL)
        assert (await warm.failure()).reason == "Ray's gcs_server was ended by SIGKILL"


# -- the stop -------------------------------------------------------------------------------------------------------


async def test_a_stop_ends_the_daemons_removes_the_directory_and_releases_the_ports(warm: Attempt) -> None:
    warm.start("raylet")
    await warm.started()
    pid = warm.pid("raylet")
    await warm.attempt.stop(None)
    assert not Path(f"/proc/{pid}").exists() and not warm.temp.exists()
    guard = bind(warm.held.block.guard)
    assert guard is not None
    guard.close()
    assert (await warm.failure()).reason == "stopped"  # not the exit of the daemon, which was expected


async def test_a_stop_archives_the_logs_that_are_wanted(warm: Attempt, tmp_path: Path) -> None:
    warm.start("raylet")
    await warm.started()
    await warm.attempt.stop(ArchiveOptions(str(tmp_path / "archive"), max_bytes=1 << 20))
    (archive,) = tmp_path.glob("archive*")
    with tarfile.open(archive) as tar:
        (member,) = [member for member in tar.getmembers() if member.name.endswith("raylet.out")]
        log = tar.extractfile(member)
        assert log is not None and log.read() == b"a line of the raylet"


async def test_a_stop_before_the_start_releases_the_ports(new: Attempt) -> None:
    await new.attempt.stop(None)
    guard = bind(new.held.block.guard)
    assert guard is not None
    guard.close()


async def test_a_stop_after_a_cancelled_one_completes_it(warm: Attempt, tmp_path: Path) -> None:
    first = asyncio.create_task(warm.attempt.stop(ArchiveOptions(str(tmp_path / "archive"), 1 << 20, after=1000.0)))
    starter = Path(f"/proc/{warm.attempt._starter.pid}")
    await until(lambda: not starter.exists())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert warm.temp.exists()
    await asyncio.wait_for(warm.attempt.stop(None), DEADLINE_S)
    assert not warm.temp.exists()
