"""The actor that owns one program, used as a plain object: real processes, without Ray's cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import eventually

if TYPE_CHECKING:
    from tests.placement.conftest import Marked

ray = pytest.importorskip("ray")

from muster.placement.runtime import actor as module
from muster.placement.runtime.actor import SubprocessActor, returncode, substitute, visible_gpus, with_leased_ports
from muster.placement.runtime.health import NONE, Probe
from muster.placement.runtime.owner import Owner
from muster.process import Exit

DEADLINE_S = 120.0
OWNER = Owner("node", "host", 1, 2, "pid:[3]", 4.0)


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Stand in for Ray's worker; the accelerators that it gave the actor may be changed."""
    accelerators: dict[str, list[str]] = {}
    context = SimpleNamespace(get_node_id=lambda: "node", get_accelerator_ids=lambda: accelerators)
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(module.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    return accelerators


@pytest.fixture
async def actor(marked: Marked) -> AsyncIterator[SubprocessActor]:
    """An actor whose program is killed at the end, before `marked` checks that nothing is left."""
    made = SubprocessActor()
    yield made
    await made.force_sigkill_subprocess()


async def start(actor: SubprocessActor, script: str, marked: Marked, directory: Path, **options: Any) -> dict[str, Any]:
    return await actor.initialize(["sh", "-c", script], marked.env, str(directory / "logs" / "x.log"), **options)


async def test_before_its_start_there_is_no_program(actor: SubprocessActor) -> None:
    assert not await actor.is_alive() and await actor.pid() == -1
    assert await actor.run() == -1 and await actor.wait_for(60) == -1 and await actor.stop(60) is None
    assert await actor.read_log_tail() == ""


async def test_a_start_returns_the_facts_and_a_wait_the_exit_code(
    actor: SubprocessActor, marked: Marked, tmp_path: Path
) -> None:
    facts = await start(actor, "echo {greeting} on {host}; exit 3", marked, tmp_path, substitutes={"greeting": "hello"})
    assert facts["pid"] == await actor.pid() and facts["actor_pid"] == os.getpid() and facts["node_id"] == "node"
    assert facts["address"] == "127.0.0.1" and "port" not in facts
    assert await asyncio.wait_for(actor.run(), DEADLINE_S) == 3 == await actor.wait_for(0)
    status = await actor.status()
    assert (status["alive"], status["exit"], status["exit_code"]) == (False, "exited with 3", 3)
    assert status["log_tail"] == "hello on 127.0.0.1\n" == (tmp_path / "logs" / "x.log").read_text()


async def test_a_wait_ends_after_its_time_and_leaves_the_program_alone(
    actor: SubprocessActor, marked: Marked, tmp_path: Path
) -> None:
    await start(actor, "exec sleep 1000", marked, tmp_path)
    assert await actor.wait_for(0.01) is None and await actor.is_alive()
    assert (await actor.status())["log_tail"] == ""  # only of a program that has ended
    assert await actor.stop(DEADLINE_S) == -signal.SIGTERM
    assert not await actor.is_alive() and marked.gone()


async def test_force_kills_a_program_while_a_stop_waits_for_its_grace(
    actor: SubprocessActor, marked: Marked, tmp_path: Path
) -> None:
    await start(actor, "trap 'touch {deaf}; :' TERM; touch {trap}; while :; do sleep 0.01; done", marked, tmp_path,
                substitutes={name: str(tmp_path / name) for name in ("trap", "deaf")})  # fmt: skip
    await asyncio.to_thread(eventually, "the trap", (tmp_path / "trap").exists)
    stopping = asyncio.create_task(actor.stop(10 * DEADLINE_S))
    await asyncio.to_thread(eventually, "TERM to be ignored", (tmp_path / "deaf").exists)
    assert not stopping.done()
    await actor.force_sigkill_subprocess()
    assert await asyncio.wait_for(stopping, DEADLINE_S) == -signal.SIGKILL
    assert marked.gone()


async def test_a_program_that_cannot_be_started_is_an_error_in_the_facts(
    actor: SubprocessActor, marked: Marked, tmp_path: Path
) -> None:
    facts = await actor.initialize(["/no/such/program"], marked.env, str(tmp_path / "x.log"))
    assert facts["error"].startswith("/no/such/program could not be started: ") and facts["pid"] is None
    nothing = await SubprocessActor().initialize([], {}, str(tmp_path / "x.log"))
    assert nothing["error"].startswith("nothing could not be started: ")


async def test_python_args_are_for_this_interpreter_and_the_environment_is_substituted(
    actor: SubprocessActor, marked: Marked, tmp_path: Path, worker: dict[str, list[str]]
) -> None:
    worker["GPU"] = ["1", "3"]
    show = "import os, sys; print(sys.executable, os.environ['PORT'], os.environ['CUDA_VISIBLE_DEVICES'])"
    facts = await actor.initialize(
        None, {**marked.env, "PORT": "{port}"}, str(tmp_path / "x.log"), python_args=["-S", "-c", show]
    )
    assert await asyncio.wait_for(actor.run(), DEADLINE_S) == 0
    assert await actor.read_log_tail() == f"{sys.executable} {facts['port']} 1,3\n"


async def test_a_report_comes_with_a_change_of_health_and_otherwise_after_its_time(
    actor: SubprocessActor, marked: Marked, tmp_path: Path
) -> None:
    await start(actor, "exec sleep 1000", marked, tmp_path, probe=Probe(NONE))
    ready = await asyncio.wait_for(actor.report(0, 10 * DEADLINE_S), DEADLINE_S)
    assert (ready["state"], ready["version"], ready["alive"]) == ("ready", 1, True)
    assert (await actor.report(1, 0.01))["version"] == 1
    waiting = asyncio.create_task(actor.report(1, 10 * DEADLINE_S))
    os.kill(await actor.pid(), signal.SIGKILL)
    ended = await asyncio.wait_for(waiting, DEADLINE_S)
    assert (ended["state"], ended["version"], ended["exit_code"]) == ("ended", 2, -signal.SIGKILL)


async def test_a_description_names_the_owner_which_may_change(
    actor: SubprocessActor, marked: Marked, tmp_path: Path
) -> None:
    await start(actor, "exec sleep 1000", marked, tmp_path, owner=OWNER)
    described = await actor.describe()
    assert described["owner"] == OWNER and described["alive"] and described["since"] > 0
    other = Owner("other", "host", 1, 2, "pid:[3]", 5.0)
    await actor.belongs_to(other)
    assert (await actor.describe())["owner"] == other


def test_only_ports_that_a_text_uses_and_nobody_gave_are_leased() -> None:
    assert with_leased_ports({}, ["--port", "8000"]) == {"host": "127.0.0.1"}
    both = with_leased_ports({}, ["--port={port}", "{master_port}"])
    assert both.keys() == {"host", "port", "master_port"} and both["port"] != both["master_port"]
    given = {"port": "8000", "host": "::1"}
    assert with_leased_ports(given, ["{port}"]) == given


def test_unknown_braces_are_left_as_they_are() -> None:
    known = {"port": "8000", "rank": "1"}
    assert substitute('{port}/{rank}/{other}/{"port": 1}/{}', known) == '8000/1/{other}/{"port": 1}/{}'


def test_without_gpus_of_ray_no_variable_is_set(worker: dict[str, list[str]]) -> None:
    assert visible_gpus() == {}
    worker["GPU"] = ["0"]
    assert visible_gpus() == {"CUDA_VISIBLE_DEVICES": "0"}


def test_exit_codes_are_those_of_subprocess_and_an_unknown_end_counts_as_killed() -> None:
    assert [returncode(Exit(code=3)), returncode(Exit(signal=15)), returncode(Exit())] == [3, -15, -9]
