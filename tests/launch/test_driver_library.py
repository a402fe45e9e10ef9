"""The library of a run: complete, importable from one file, and replaced by any other package of its name."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from muster.launch import driver_library
from muster.launch.agent_archive import agent_sources
from muster.launch.driver_library import build_library, library_sources
from muster.rundir.paths import LIBRARY


@pytest.fixture(scope="module")
def contents() -> bytes:
    return build_library(sys.executable)


@pytest.fixture
def archive(contents: bytes, tmp_path: Path) -> Path:
    (tmp_path / LIBRARY).write_bytes(contents)
    return tmp_path / LIBRARY


def python(program: str, *path: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """In an environment that has nothing but this path."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd="/", env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


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


def test_a_missing_attribute_has_a_clear_error(archive: Path) -> None:
    done = python("import muster; muster.run", archive, check=False)
    assert "Muster is not installed in this environment" in done.stderr and "muster.placement" in done.stderr


def package(directory: Path, source: str) -> Path:
    (directory / "muster").mkdir(parents=True)
    (directory / "muster" / "__init__.py").write_text(source)
    (directory / "muster" / "theirs.py").write_text("from muster import WHO\n")
    return directory


ASKS = "import muster.theirs; print(muster.theirs.WHO, muster.__file__, hasattr(muster, 'beat'))"


@pytest.mark.parametrize("order", [1, -1], ids=["behind the library", "before it"])
def test_another_package_muster_is_imported_instead(archive: Path, tmp_path: Path, order: int) -> None:
    theirs = package(tmp_path / "site", "WHO = 'somebody else'")
    done = python(ASKS, *(archive, theirs)[::order])
    assert done.stdout == f"somebody else {theirs}/muster/__init__.py False\n"
    nothing = python("import muster.process", *(archive, theirs)[::order], check=False)
    assert "No module named 'muster.process'" in nothing.stderr


def test_a_package_muster_with_a_custom_finder_is_imported_instead(archive: Path, tmp_path: Path) -> None:
    """Some editable installations are not on the path."""
    theirs = package(tmp_path / "site", "WHO = 'an editable one'")
    finder = f"""
import sys
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(theirs)!r}]) if name == "muster" else None
sys.meta_path.append(Finder)
"""
    assert python(finder + ASKS, archive).stdout.startswith("an editable one ")


def test_an_import_error_of_the_other_package_is_raised_unchanged(archive: Path, tmp_path: Path) -> None:
    done = python("import muster", archive, package(tmp_path / "site", "import no_such_thing"), check=False)
    assert "No module named 'no_such_thing'" in done.stderr


def test_a_directory_muster_or_another_run_s_library_is_not_imported_instead(
    archive: Path, contents: bytes, tmp_path: Path
) -> None:
    (tmp_path / "site" / "muster").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LIBRARY).write_bytes(contents)
    done = python(
        "import muster; print(muster.beat, muster.__file__)", archive, tmp_path / "site", tmp_path / "run" / LIBRARY
    )
    assert str(archive) in done.stdout


def test_the_archive_has_the_source_of_every_module_and_nothing_else(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(contents)
    members = zipfile.ZipFile(tmp_path / LIBRARY).namelist()
    assert {name for name in members if name.endswith(".py")} == set(library_sources())
    rooms = {name.split("/")[1].removesuffix(".py") for name in library_sources()}
    assert rooms == {"__init__", "placement", "process", "progress", "ports", "exit_codes"}


def test_the_library_has_the_sandbox_only_for_jobs_with_a_sandbox() -> None:
    name = "muster/sandbox/client/sync_client.py"
    assert name in library_sources(sandbox=True) and name not in library_sources()
    assert "muster.sandbox.server" in agent_sources(sandbox=True) and "muster.sandbox.server" not in agent_sources()
