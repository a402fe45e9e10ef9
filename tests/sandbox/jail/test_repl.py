"""The shell of sessions on nodes without IPython."""

from __future__ import annotations

import sys

import pytest

from muster.sandbox.jail import repl


def test_commands_in_cells_are_found_only_where_they_are_no_python() -> None:
    assert repl.with_commands("!ls -l") == "_run_command('ls -l')"
    assert repl.with_commands("for i in 'ab':\n    !echo x") == "for i in 'ab':\n    _run_command('echo x')"
    text = "x = '''\n!no\n'''\nprint(5 % 3)"
    assert repl.with_commands(text) == text
    with pytest.raises(SyntaxError, match="need IPython"):
        repl.with_commands("%timeit 1")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> repl.Shell:
    """A session's shell; it replaces __main__ until the end of the test."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return repl.Shell()


Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("6 * 7", "42\n"),
        ("x = 1\nx", "1\n"),
        ("None", ""),
        ("5;", ""),
        ("", ""),
        ("print('a')", "a\n"),
        ("import asyncio\nawait asyncio.sleep(0, 5)", "5\n"),
        ("'!no'", "'!no'\n"),
    ],
)
def test_the_value_of_the_last_expression_is_shown(shell: repl.Shell, capsys: Captured, cell: str, shown: str) -> None:
    assert shell.run(cell, "Plain") is False
    assert capsys.readouterr().out == shown


def test_names_stay_from_cell_to_cell(shell: repl.Shell, capsys: Captured) -> None:
    shell.run("def f():\n    return n + 1\nn = 1", "Plain")
    shell.run("n = 5", "Plain")
    shell.run("f()", "Plain")
    shell.run("_ * 2, __name__", "Plain")
    assert capsys.readouterr().out == "6\n(12, '__main__')\n"


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [
        ("Minimal", "ZeroDivisionError: division by zero\n"),
        ("Plain", "Traceback (most recent call last):\n    f()\n    1 / 0\nZeroDivisionError: division by zero\n"),
    ],
)
def test_a_traceback_has_the_lines_of_the_cells_only(
    shell: repl.Shell, capsys: Captured, verbosity: str, shown: str
) -> None:
    shell.run("def f():\n    1 / 0", verbosity)
    assert shell.run("f()", verbosity) is True
    assert capsys.readouterr().out == shown


def test_a_traceback_names_the_files_outside_of_cells(shell: repl.Shell, capsys: Captured) -> None:
    assert shell.run("import json\njson.loads('?')", "Plain") is True
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "    json.loads('?')" and lines[2].startswith("  File ") and " in loads" in lines[2]
    assert lines[-1].startswith("JSONDecodeError: ")  # without its module, as IPython shows it
    shell.run("1 / 0", "Verbose")
    assert 'File "<cell 2>", line 1' in capsys.readouterr().out


@pytest.mark.parametrize("cell", ["import sys; sys.exit(3)", "raise KeyboardInterrupt", "raise BaseException"])
def test_no_error_ends_the_session(shell: repl.Shell, cell: str) -> None:
    assert shell.run(cell, "Plain") is True
    assert shell.run("1", "Plain") is False


@pytest.mark.parametrize(
    ("cell", "last"),
    [("x = )", "SyntaxError: unmatched ')'"), ("%magic", "magic commands need IPython"), ("a\0b", "null bytes")],
)
def test_a_cell_that_cannot_be_compiled_fails(shell: repl.Shell, capsys: Captured, cell: str, last: str) -> None:
    for verbosity in ("Plain", "Minimal"):
        assert shell.run(cell, verbosity) is True
        assert last in capsys.readouterr().out.splitlines()[-1]


def test_commands_run_in_order_with_the_output_of_the_cell(shell: repl.Shell, capfd: Captured) -> None:
    assert shell.run("print('first')\n!echo second\nprint('third')", "Plain") is False
    assert capfd.readouterr().out == "first\nsecond\nthird\n"
