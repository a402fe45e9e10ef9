"""Node-side code imports only the standard library, is valid on Python 3.9, and runs from one file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster
from muster.launch import agent_archive
from muster.launch.agent_archive import AGENT_PACKAGES, agent_sources, build_archive

ROOT = Path(muster.__file__).parent
PACKAGES = ("agent", "lifecycle", "election", "rundir", "process", "ports", "slurm")
SINGLE_MODULES = ("exit_codes.py", "errors.py", "control_requests.py", "sections.py")
MODULES = sorted(
    [
        *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")),
        *(ROOT / name for name in SINGLE_MODULES),
    ]
)
RAY_IS_ALLOWED_IN = [ROOT / "agent" / "ray" / name for name in ("starter.py", "jobs.py")]

# Runs the archive as a node does, up to the point where the agent misses its arguments; then tells what is loaded.
PROBE = """
import json, runpy, sys
sys.argv = [sys.argv[1]]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except IndexError:  # no run directory given
    pass
main = sys.modules["muster.agent.main"]
print(json.dumps({"modules": sorted(sys.modules), "main": main.main.__code__.co_filename}))
"""


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every imported module, including imports inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def is_allowed(name: str, path: Path) -> bool:
    first, _, rest = name.partition(".")
    if first == "muster":
        return rest.partition(".")[0] in AGENT_PACKAGES
    return first in sys.stdlib_module_names or (first == "ray" and path in RAY_IS_ALLOWED_IN)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_node_side_module_imports_only_the_standard_library_and_node_side_packages(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))  # and is valid on Python 3.9
    assert [name for name in imports(tree) if not is_allowed(name, path)] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_annotations_are_not_evaluated_where_python_3_9_would_not_understand_them(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.AnnAssign)) for node in ast.walk(ast.parse(source))
    ):
        assert "from __future__ import annotations\n" in source


def test_a_lazy_import_would_be_found() -> None:
    tree = ast.parse("def f():\n    import pydantic\n    from muster.spec import JobSpec")
    assert [name for name in imports(tree) if not is_allowed(name, ROOT)] == ["pydantic", "muster.spec.JobSpec"]


def test_the_archive_holds_every_module_of_the_node_and_no_other() -> None:
    named = {
        ".".join(("muster", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
    }
    assert set(agent_sources()) == named | {"muster"}


# -- the archive, run as a node runs it -------------------------------------------------------------------------


def probe(contents: bytes, directory: Path, python: str = sys.executable) -> dict[str, list[str] | str]:
    """Load the agent only from the archive: no site-packages, no source tree, another directory."""
    (directory / "agent.pyz").write_bytes(contents)
    done = subprocess.run(
        [python, "-I", "-S", "-c", PROBE, str(directory / "agent.pyz")],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def contents() -> bytes:
    return build_archive(sys.executable)


def test_the_agent_loaded_from_its_archive_pulls_in_nothing_but_the_standard_library(
    contents: bytes, tmp_path: Path
) -> None:
    loaded = probe(contents, tmp_path)
    foreign = [name for name in loaded["modules"] if name.partition(".")[0] not in {*sys.stdlib_module_names, "muster"}]
    assert foreign == ["__main__"]
    assert "muster.agent.leader.leader" in loaded["modules"] and "muster.spec" not in loaded["modules"]


def test_with_matching_bytecode_nothing_is_compiled_on_the_node(contents: bytes, tmp_path: Path) -> None:
    assert probe(contents, tmp_path)["main"] == "muster/agent/main.py"  # the name given when it was compiled


def test_with_the_bytecode_of_another_version_the_sources_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        agent_archive,
        "compile_sources",
        lambda sources, python: (b"\x00\x00\r\n", dict.fromkeys(sources, b"no bytecode")),
    )
    loaded = probe(build_archive(sys.executable), tmp_path)
    assert loaded["main"] == f"{tmp_path}/agent.pyz/muster.agent.main"


def test_if_the_node_s_interpreter_cannot_run_here_the_archive_still_works(tmp_path: Path) -> None:
    probe(build_archive("/no/such/python"), tmp_path)


def test_if_no_interpreter_can_run_here_the_archive_contains_only_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(agent_archive.sys, "executable", "/no/such/python")
        contents = build_archive("/no/such/python")
    assert probe(contents, tmp_path)["main"] == f"{tmp_path}/agent.pyz/muster.agent.main"


def test_the_archive_is_two_members_of_which_the_first_needs_no_unpacking(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "agent.pyz").write_bytes(contents)
    members = zipfile.ZipFile(tmp_path / "agent.pyz").infolist()
    assert [member.filename for member in members] == ["__main__.py", "modules"]
    assert members[0].compress_type == zipfile.ZIP_STORED


def test_the_source_of_a_loaded_module_is_available(contents: bytes, tmp_path: Path) -> None:
    """The supervisor and Ray's starter are run from it by `python -c`."""
    (tmp_path / "agent.pyz").write_bytes(contents)
    program = PROBE + "from muster.process import source_of, supervisor\nprint(len(source_of(supervisor)))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "agent.pyz")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert int(done.stdout.splitlines()[-1]) == len((ROOT / "process" / "supervisor.py").read_text())
