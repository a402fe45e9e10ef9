"""A Python program in a warm interpreter: names, tracebacks and exit codes as of `python3 -c`."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
from tests.sandbox.forked import output_of

from muster.sandbox.jail import program

PROGRAMS = {
    "output": "print(1)",
    "names": "import sys; print(__name__, sys.argv, sys.path[0], sorted(k for k in globals() if k == 'sys'))",
    "error": "def f():\n    1 / 0\nf()",
    "chained error": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    [][1]",
    "syntax error": "x = )",
    "exit": "import sys; sys.exit(3)",
    "large exit code": "raise SystemExit(256 + 7)",
    "exit without a code": "raise SystemExit",
    "exit with text": "import sys; print('out'); sys.exit('why')",
    "future": "from __future__ import annotations\ndef f(a: undefined): pass\nprint(f.__annotations__)",
    "exit functions": "import atexit; atexit.register(print, 'last'); print('first')",
    "threads": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()",
    "error after output": "print('out', end='')\nraise ValueError('no')",
    "pickled class": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_by_a_new_interpreter(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAMS[name]], capture_output=True, text=True)
    expected = done.returncode, done.stdout, done.stderr
    assert output_of(lambda: program.run(PROGRAMS[name])) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_in_a_file_runs_as_by_a_new_interpreter(name: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.py", tmp_path / "theirs.py"
    theirs.write_text(PROGRAMS[name])
    done = subprocess.run([sys.executable, str(theirs)], capture_output=True, text=True)
    code, stdout, stderr = output_of(lambda: program.run(PROGRAMS[name], str(ours)))
    assert (code, *(text.replace("ours.py", "theirs.py") for text in (stdout, stderr))) == (
        done.returncode,
        done.stdout,
        done.stderr,
    )


def test_an_interrupt_is_reported_as_by_a_shell() -> None:
    code, _, stderr = output_of(lambda: program.run("raise KeyboardInterrupt"))
    assert code == 130 and stderr.endswith("KeyboardInterrupt\n")


def test_output_that_cannot_be_written_is_an_error() -> None:
    lost = "import os, sys; print('lost'); os.close(1)"
    assert output_of(lambda: program.run(lost))[0] == 120
    assert output_of(lambda: program.run(lost + "; sys.exit(5)"))[0] == 5


def test_numpy_is_seeded_anew_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[bool] = []
    fake = types.ModuleType("numpy.random")
    fake.seed = lambda: seeded.append(True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy.random", fake)
    program.reseed()
    assert seeded == [True]
    monkeypatch.delitem(sys.modules, "numpy.random")
    program.reseed()
    assert seeded == [True]


def test_leaving_exits_with_the_status_and_writes_what_is_buffered() -> None:
    def leave() -> None:
        sys.stdout.write("buffered")
        program.leave(4)

    assert output_of(leave) == (4, "buffered", "")
