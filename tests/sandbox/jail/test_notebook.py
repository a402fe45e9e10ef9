"""A notebook: the results of its cells, with and without IPython."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from tests.sandbox.forked import output_of

from muster.sandbox.jail import notebook

HAS_IPYTHON = importlib.util.find_spec("IPython") is not None
BACKENDS = ["repl", pytest.param("ipython", marks=pytest.mark.skipif(not HAS_IPYTHON, reason="no IPython here"))]


def results(cells: list[str], backend: str = "repl", timeout: float = 0.0) -> list[dict[str, Any]]:
    code, stdout, stderr = output_of(lambda: notebook.run(cells, backend, timeout))
    assert (code, stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(stdout)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_cells_share_their_state_and_show_their_values(backend: str) -> None:
    first, value, printed = results(["a = 'x'", "a", "print(a)"], backend)
    assert first == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert value["display"] == [{"text/plain": "'x'"}] and value["stdout"] == ""
    assert printed["stdout"] == "x\n" and printed["display"] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_is_named_and_the_next_cell_runs(backend: str) -> None:
    failed, wrong, exited, last = results(["[][1]", "x = )", "raise SystemExit(3)", "print(1)"], backend)
    assert (failed["error"][0]["ename"], failed["error"][0]["evalue"]) == ("IndexError", "list index out of range")
    assert any("[][1]" in line for line in failed["error"][0]["traceback"])
    assert wrong["error"][0]["ename"] == "SyntaxError"
    assert exited["error"] == [] or exited["error"][0]["ename"] == "SystemExit"
    assert last["stdout"] == "1\n"


def test_output_of_child_processes_belongs_to_the_cell() -> None:
    first, second = results(["import os\nnone = os.system('echo out; echo err >&2')", "print(2)"])
    assert (first["stdout"], first["stderr"], second["stdout"]) == ("out\n", "err\n", "2\n")


def test_a_cell_that_takes_too_long_is_interrupted() -> None:
    slow, last = results(["while True: pass", "print(1)"], timeout=1.0)
    assert slow["error"][0]["ename"] == "CellTimeout" and last["stdout"] == "1\n"


def test_pictures_are_in_base64() -> None:
    assert notebook._as_text(b"\xff") == "/w==" and notebook._as_text({1}) == "{1}"
