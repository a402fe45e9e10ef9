"""The library of a run: complete, and importable from one file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from tests.launch.library_archive import archive, contents, python

from muster.launch import driver_library
from muster.launch.agent_archive import agent_sources
from muster.launch.driver_library import build_library, library_sources
from muster.rundir.paths import LIBRARY

__all__ = ["archive", "contents"]


def test_a_driver_without_muster_finds_placement_processes_and_beat(archive: Path, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    program = f"""
import os; os.environ["MUSTER_BEAT_FILE"] = {str(beat)!r}
import muster
from muster.placement import Cluster, Model, Node, plan
muster.beat(step=3)
print(plan(Cluster([Node("a", {{"GPU": 4}}, {{"GPU": 4}})]), [Model("m", tp=4, cpus=0)]).fits)
"""
    assert python(program, archive).stdout == "True\n"
    assert int(beat.read_text()) == 3


def test_a_scope_is_opened_from_the_archive_whose_supervisor_is_run_from_its_source(archive: Path) -> None:
    program = """
import asyncio
from muster.process import Scope
async def main():
    async with Scope("test") as scope:
        print(await (await scope.spawn(["sh", "-c", "exit 3"])).wait())
asyncio.run(main())
"""
    assert python(program, archive).stdout == "exited with 3\n"


SHOWS = "from muster.process import scope; print(scope.Scope.open.__code__.co_filename)"


def test_with_fitting_bytecode_nothing_is_compiled_and_with_another_version_s_the_sources_are_used(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert python(SHOWS, archive).stdout == "muster/process/scope.py\n"  # the name given when it was compiled
    for magic, code in ((b"\x00\x00\r\n", b"no bytecode"), (b"", b"")):
        foreign = (magic, code)
        monkeypatch.setattr(
            driver_library, "compile_sources", lambda sources, _, f=foreign: (f[0], dict.fromkeys(sources, f[1]))
        )
        archive.write_bytes(build_library("/no/such/python"))
        assert python(SHOWS, archive).stdout == f"{archive}/muster/process/scope.py\n"


def test_the_archive_has_the_source_of_every_module_and_nothing_else(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(contents)
    members = zipfile.ZipFile(tmp_path / LIBRARY).namelist()
    assert {name for name in members if name.endswith(".py")} == set(library_sources())
    rooms = {name.split("/")[1].removesuffix(".py") for name in library_sources()}
    helpers = {"progress", "sections", "control_requests", "service_lookup", "exit_codes"}
    assert rooms == {"__init__", "placement", "process", "ports", *helpers}


def test_the_library_has_the_sandbox_only_for_jobs_with_a_sandbox() -> None:
    name = "muster/sandbox/client/sync_client.py"
    assert name in library_sources(sandbox=True) and name not in library_sources()
    assert "muster.sandbox.server" in agent_sources(sandbox=True) and "muster.sandbox.server" not in agent_sources()
