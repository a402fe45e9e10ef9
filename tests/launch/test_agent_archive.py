"""The agent as one archive, and its bytecode."""

from __future__ import annotations

import importlib.util
import io
import marshal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from muster.exit_codes import OLD_PYTHON
from muster.launch import agent_archive
from muster.launch.agent_archive import BOOTSTRAP, build_archive, compile_sources, package_sources


def test_a_package_has_all_its_modules_and_a_single_module_only_itself() -> None:
    found = package_sources(["errors", "ports"])
    assert found["muster.errors"][0] is False and "class Mistake" in found["muster.errors"][1]
    assert found["muster.ports"][0] is True and "muster.ports.blocks" in found
    assert all(name == "muster.errors" or name.startswith("muster.ports") for name in found)


def test_sources_are_compiled_by_the_interpreter_that_is_named() -> None:
    magic, codes = compile_sources({"a": "x = 40 + 2"}, sys.executable)
    assert magic == importlib.util.MAGIC_NUMBER
    namespace: dict[str, object] = {}
    exec(marshal.loads(codes["a"]), namespace)
    assert namespace["x"] == 42


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false", "/bin/true"])
def test_an_interpreter_that_does_not_work_here_is_replaced_by_this_one_or_by_none(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compile_sources({"a": "x = 1"}, python)[0] == importlib.util.MAGIC_NUMBER
    monkeypatch.setattr(agent_archive.sys, "executable", "/no/such/python")
    assert compile_sources({"a": "x = 1"}, python) == (b"", {"a": b""})


def test_the_archive_has_two_members_which_a_node_reads_once() -> None:
    with zipfile.ZipFile(io.BytesIO(build_archive(sys.executable))) as archive:
        assert archive.namelist() == ["__main__.py", "modules"]
        assert archive.getinfo("__main__.py").compress_type == zipfile.ZIP_STORED
        modules = marshal.loads(archive.read("modules"))
    package, source, magic, code = modules["muster.agent.main"]
    assert (package, magic) == (False, importlib.util.MAGIC_NUMBER) and "def main" in source and code
    assert modules["muster"][:2] == (True, "")


def test_a_python_that_is_too_old_is_refused_with_its_own_exit_code(tmp_path: Path) -> None:
    bootstrap = BOOTSTRAP.replace("@OLD_PYTHON@", str(OLD_PYTHON))
    program = f"import sys; sys.version_info = (3, 8, 18); exec({bootstrap!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == OLD_PYTHON
    assert done.stderr.startswith("muster: the agent needs Python 3.9 or newer, this is ")


def test_an_error_in_the_archive_shows_the_line_of_its_source(tmp_path: Path) -> None:
    """Tracebacks find the source through the loader, since there is no file."""
    (tmp_path / "agent.pyz").write_bytes(build_archive(sys.executable))
    program = (
        "import runpy, sys, linecache; sys.argv = [sys.argv[1]]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except BaseException: pass\n"
        "import muster.agent.main as main\n"
        "print(main.__loader__.get_source('muster.agent.main') == open(sys.stdin.fileno()).read())"
    )
    source = package_sources(["agent"])["muster.agent.main"][1]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "agent.pyz")],
        input=source,
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    assert done.stdout.endswith("True\n"), done.stderr
