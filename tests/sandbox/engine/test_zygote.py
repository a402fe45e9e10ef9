"""The engine's side of the zygote: what it is sent, its start and its loss."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from muster.process import Scope
from muster.sandbox.engine.zygote import BOOTSTRAP, JAIL_MODULES, SandboxError, Zygote, bundle, environment
from muster.sandbox.settings import SandboxSettings


def test_what_is_sent_to_the_zygote_holds_no_secret_of_the_settings() -> None:
    sent = json.loads(bundle({"preload": [], "read_only": []}))
    assert sent["modules"]["muster"] is None and "def main" in sent["modules"]["muster.sandbox.jail.zygote"]
    assert sys.version_info >= (3, 9)


def test_all_modules_of_the_jail_are_sent_as_source_and_compile() -> None:
    modules = json.loads(bundle({}))["modules"]
    for name in JAIL_MODULES:
        compile(modules[f"muster.sandbox.jail.{name}"], name, "exec")
    compile(BOOTSTRAP, "bootstrap", "exec")


def test_programs_get_an_environment_without_anything_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_SERVICE", "hunter2")
    found = environment(SandboxSettings(env=(("CHOSEN", "yes"), ("TERM", "xterm"))))
    assert "SECRET_OF_SERVICE" not in found and "hunter2" not in str(found)
    assert (found["CHOSEN"], found["TERM"], found["OMP_NUM_THREADS"]) == ("yes", "xterm", "1")
    path = found["PATH"].split(":")
    assert path[0] == os.path.dirname(sys.executable) and len(path) == len(set(path))


async def test_a_zygote_reports_its_facts_and_its_loss() -> None:
    lost = asyncio.Event()
    async with Scope("test", lost_owner_grace=0) as scope:
        zygote = await Zygote.start(scope, SandboxSettings(preload=("json", "no_such_module?")), lost.set)
        assert zygote.facts["preloaded"] == ["json"] and zygote.facts["executable"] == sys.executable
        os.kill(zygote.pid, signal.SIGKILL)
        await asyncio.wait_for(lost.wait(), 120)
        zygote.close()  # it is closed already


@pytest.mark.parametrize(
    ("python", "preload", "why"),
    [
        (sys.executable, ("no_such_module",), "cannot preload no_such_module"),
        ("/bin/false", (), "it exited at once; see the log above"),
    ],
    ids=["preload", "program"],
)
async def test_a_zygote_that_cannot_start_says_why(python: str, preload: tuple[str, ...], why: str) -> None:
    async with Scope("test", lost_owner_grace=0) as scope:
        with pytest.raises(SandboxError, match=f"the warm interpreter .* did not start: {why}"):
            await Zygote.start(scope, SandboxSettings(python=python, preload=preload), lambda: None)


async def test_an_interpreter_that_exits_without_reading_what_it_was_sent_is_told(tmp_path: Path) -> None:
    """The kernel then reports a reset connection, or a broken one if it exits even earlier."""
    early, late = tmp_path / "early", tmp_path / "late"
    early.write_text("#!/bin/sh\nexit 0\n")
    wait = "import select; select.select([0], [], [])"
    late.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(wait)}\n")
    async with Scope("test", lost_owner_grace=0) as scope:
        for python in (early, late):
            python.chmod(0o755)
            with pytest.raises(SandboxError, match="it exited at once"):
                await Zygote.start(scope, SandboxSettings(python=str(python), preload=()), lambda: None)


async def test_a_zygote_in_a_sandbox_is_ended_if_its_start_is_abandoned(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    silent = ["/bin/sh", "-c", f"echo $$ > {shlex.quote(str(started))}; exec sleep 600"]
    async with Scope("test", lost_owner_grace=0) as scope:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Zygote.start(scope, SandboxSettings(), lambda: None, silent), 3)
        pid = int(started.read_text())
        while os.path.exists(f"/proc/{pid}"):  # ended by the test's deadline at the latest
            await asyncio.sleep(0.01)
