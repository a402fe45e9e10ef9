"""ipython sessions: state, isolation from each other, interrupts, loss, eviction."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from tests.running import wait_for

from muster.sandbox.engine import sessions as module
from muster.sandbox.engine.sessions import Session, Sessions
from muster.sandbox.settings import SandboxSettings

if TYPE_CHECKING:
    from tests.sandbox.serving import Served


def test_the_contract_s_four_answers_exactly(box: Served) -> None:
    session = box.new_session()
    assert box.cell("print(1)", session) == {
        "process_status": "completed",
        "stdout": "1\n",
        "stderr": "",
        "new_session_created": True,
    }
    assert box.cell("1 / 0", session) == {
        "process_status": "error",
        "stdout": "Traceback (most recent call last):\n    1 / 0\nZeroDivisionError: division by zero\n",
        "stderr": "",
        "new_session_created": False,
    }
    assert box.cell("x = )", session) == {
        "process_status": "error",
        "stdout": "    x = )\n        ^\nSyntaxError: unmatched ')'\n",
        "stderr": "",
        "new_session_created": False,
    }
    assert box.cell("import time; time.sleep(60)", session, timeout=1) == {
        "process_status": "timeout",
        "stdout": "",
        "stderr": "Execution timed out after 1 seconds\n",
        "new_session_created": False,
    }


def test_state_stays_and_the_last_expression_is_shown(box: Served) -> None:
    session = box.new_session()
    assert box.cell("x = 41\nx", session)["stdout"] == "41\n"
    assert box.cell("x + 1", session)["stdout"] == "42\n"
    assert box.cell("x;", session)["stdout"] == ""
    assert box.cell("'a'", session)["stdout"] == "'a'\n"


def test_top_level_await_and_commands_work(strong: Served) -> None:
    session = strong.new_session()
    assert strong.cell("import asyncio\nawait asyncio.sleep(0, 5)", session)["stdout"] == "5\n"
    assert strong.cell("!echo hi", session)["stdout"] == "hi\n"


def test_output_past_python_belongs_to_its_cell(strong: Served) -> None:
    session = strong.new_session()
    answer = strong.cell("import os, sys\nos.write(1, b'raw\\n')\nprint('e', file=sys.stderr)", session)
    assert (answer["stdout"].splitlines()[0], answer["stderr"]) == ("raw", "e\n")


@pytest.mark.parametrize(
    ("verbosity", "said"),
    [
        ("Minimal", "ZeroDivisionError: division by zero\n"),
        ("plain", "Traceback (most recent call last):\n    1 / 0\n"),
    ],
)
def test_tracebacks_come_as_verbose_as_asked_for(strong: Served, verbosity: str, said: str) -> None:
    answer = strong.cell("1 / 0", strong.new_session(), traceback_verbosity=verbosity)
    assert answer["stdout"].startswith(said)


def test_ten_concurrent_sessions_never_see_each_other(box: Served) -> None:
    sessions = [box.new_session() for _ in range(10)]

    def work(number: int) -> list[str]:
        for step in range(3):
            box.cell(f"mine = {number}\nopen('f', 'w').write('{number}')", sessions[number])
            seen = box.cell("print(mine, open('f').read())", sessions[number])["stdout"]
            assert seen == f"{number} {number}\n", step
        return [seen]

    with ThreadPoolExecutor(10) as pool:
        assert len(list(pool.map(work, range(10)))) == 10
    for session in sessions:
        assert box.ask("DELETE", f"/sessions/{session}").status == 200


def test_calls_of_one_session_run_one_after_the_other(strong: Served) -> None:
    session = strong.new_session()
    strong.cell("n = 0\nimport time", session)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: strong.cell("m = n; time.sleep(0.1); n = m + 1", session), range(4)))
    assert strong.cell("n", session)["stdout"] == "4\n"


def survives_an_interrupt(served: Served) -> bool:
    """Return whether a new session keeps its state: one that does not react within its grace is ended instead."""
    session = served.new_session()
    served.cell("kept = 1", session)
    assert served.cell("while True: pass", session, timeout=0.5)["process_status"] == "timeout"
    answer = served.cell("'kept' in globals() and kept", session)
    assert answer["stdout"] == ("False\n" if answer["new_session_created"] else "1\n")
    return not answer["new_session_created"]


def test_an_interrupted_cell_leaves_the_state_there(box: Served) -> None:
    wait_for("a session that survives an interrupt", lambda: survives_an_interrupt(box))


def test_a_cell_that_ignores_the_interrupt_costs_the_session_which_says_so_once(box: Served) -> None:
    session = box.new_session()
    stubborn = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    started = time.monotonic()
    assert box.cell(stubborn, session, timeout=1)["process_status"] == "timeout"
    assert time.monotonic() - started < 1 + 3 + 60
    assert [box.cell("1", session)["new_session_created"] for _ in range(3)] == [True, False, False]


def test_a_session_that_ends_its_process_is_an_error_and_then_new(box: Served) -> None:
    session = box.new_session()
    box.cell("x = 1", session)
    answer = box.cell("import os; os._exit(3)", session)
    assert answer == {
        "process_status": "error",
        "stdout": "",
        "stderr": "connection closed\n",
        "new_session_created": False,
    }
    assert [box.cell("1", session)["new_session_created"] for _ in range(2)] == [True, False]


def test_delete_ends_a_running_session_and_its_files_and_a_second_is_404(box: Served) -> None:
    session = box.new_session()
    box.cell("open('f', 'w').write('x'); y = 1", session)
    answers = []
    running = threading.Thread(
        target=lambda: answers.append(box.cell("import time; time.sleep(60)", session, timeout=90))
    )
    running.start()
    wait_for("the cell to run", lambda: box.ask("GET", "/load")["running"])
    assert box.ask("DELETE", f"/sessions/{session}").status == 200
    running.join(120)
    assert answers[0]["process_status"] == "error"
    second = box.ask("DELETE", f"/sessions/{session}")
    assert second.status == 404 and "error" in second
    assert box.cell("import os; (os.listdir('.'), 'y' in globals())", session)["stdout"] == "([], False)\n"


def test_a_session_that_speaks_out_of_turn_is_ended_and_the_server_unharmed(strong: Served) -> None:
    session = strong.new_session()
    flood = """
import os, threading
def flood():
    while True:
        try:
            os.write(3, b"[" * 5000)
        except OSError:
            break
threading.Thread(target=flood, daemon=True).start()
"""
    assert strong.cell(flood + "import time; time.sleep(30)", session)["process_status"] == "error"
    assert strong.cell("1", session)["new_session_created"] is True
    assert strong.ask("GET", "/health")["status"] == "healthy"


def test_what_a_session_prints_between_its_cells_waits_for_the_next(strong: Served) -> None:
    session = strong.new_session()
    late = "def late():\n    time.sleep(0.3)\n    while not done.is_set():\n        os.write(1, b'late\\n' * 1000)"
    strong.cell(f"import os, threading, time\ndone = threading.Event()\n{late}", session)
    strong.cell("thread = threading.Thread(target=late, daemon=True); thread.start()", session)
    wait_for(
        "its output to fill the pipe",
        lambda: strong.cell("1", session, max_output_characters=10_000)["stdout"] != "1\n",
    )
    answer = strong.cell("done.set(); thread.join()", session, max_output_characters=10)
    assert answer["process_status"] == "completed" and answer["stdout"].endswith("<output cut>")
    assert len(answer["stdout"]) == 10 + len("<output cut>")


def python_with_ipython() -> str | None:
    for python in (sys.executable, os.path.realpath(sys.executable)):
        if subprocess.run([python, "-I", "-c", "import IPython"], capture_output=True).returncode == 0:
            return python
    return None


def test_where_ipython_is_installed_it_is_the_shell_and_the_answers_are_the_same(own: Callable[..., Served]) -> None:
    python = python_with_ipython()
    if python is None:
        pytest.skip("no IPython here")
    served = own(python=python, preload=["IPython"])
    assert served.ask("GET", "/health")["session_backend"] == "ipython"
    assert served.cell("1 / 0", "a") == {
        "process_status": "error",
        "stdout": "Traceback (most recent call last):\n    1 / 0\nZeroDivisionError: division by zero\n",
        "stderr": "",
        "new_session_created": True,
    }
    assert served.cell("x = )", "a")["stdout"] == "    x = )\n        ^\nSyntaxError: unmatched ')'\n"
    assert served.cell("%%capture out\nprint(1)", "a")["stdout"] == ""
    assert served.cell("out.stdout", "a")["stdout"] == "'1\\n'\n"
    wait_for("a session that survives an interrupt", lambda: survives_an_interrupt(served))


def test_sessions_are_listed(strong: Served) -> None:
    session = strong.new_session()
    strong.cell("1", session)
    listed = strong.ask("GET", "/sessions")
    assert listed["backend"] == "ipython"
    assert set(listed["sessions"][session]) == {"backend", "created", "last_used", "alive"}
    assert listed["sessions"][session]["alive"] is True


def test_an_idle_session_is_evicted(own: Callable[..., Served]) -> None:
    served = own(session_idle_s=0.5)
    served.cell("x = 1", "a")
    wait_for("the eviction", lambda: not served.ask("GET", "/sessions")["sessions"])
    assert served.cell("1", "a")["new_session_created"] is True


def unused_session(sessions: Sessions, name: str) -> Session:
    """A session without a process."""
    worker = Mock(memory=0, cpu_s=0.0, busy_s=0.0)
    worker.expect_end.return_value = asyncio.get_running_loop().create_future()
    session = Session(name, worker, "ipython")
    sessions._sessions[name] = session
    return session


async def test_a_cell_that_ends_while_it_is_killed_is_answered_after_the_end_of_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the next cell would be sent to a session that is about to end, and be lost with it."""
    monkeypatch.setattr(module, "MIN_INTERRUPT_GRACE_S", 0.0)
    monkeypatch.setattr(module, "MAX_INTERRUPT_GRACE_S", 0.0)
    session = unused_session(Sessions(SandboxSettings(), Mock()), "a")
    killed, worker = asyncio.Event(), session.worker
    worker.kill.side_effect = lambda reason: killed.set()  # type: ignore[attr-defined]
    running = asyncio.ensure_future(session.run("code", "Plain", 0.01, 100, False))
    await killed.wait()
    session._on_message({"event": "open"})
    session._on_message({"event": "done", "cell": 1, "failed": True})
    await asyncio.sleep(0.1)
    assert not running.done()
    session.ended.set_result({"status": 9, "reason": "timeout", "clean": True})
    assert (await running).status == "timeout" and not session.alive


async def test_a_step_of_the_wall_clock_neither_evicts_a_session_nor_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, monotonic = [1e9], [500.0]
    clock = SimpleNamespace(time=lambda: wall[0], monotonic=lambda: monotonic[0])
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "HOUSEKEEPING_INTERVAL_S", 0.0)
    sessions = Sessions(SandboxSettings(session_idle_s=60.0), Mock())
    session = unused_session(sessions, "a")
    keeping = asyncio.ensure_future(sessions.housekeeping())

    async def housekeep() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    wall[0] += 7200.0  # NTP corrects the clock of the node
    monotonic[0] += 10.0
    await housekeep()
    assert list(sessions.listed()) == ["a"] and sessions.evicted == 0
    assert sessions.listed()["a"]["last_used"] == wall[0] - 10.0
    wall[0] -= 14400.0  # and back: it is not kept for hours
    monotonic[0] += 51.0
    await housekeep()
    assert sessions.listed() == {} and sessions.evicted == 1
    session.worker.kill.assert_called_once_with("deleted")  # type: ignore[attr-defined]
    keeping.cancel()


def test_the_longest_unused_session_makes_room_for_a_new_one(own: Callable[..., Served]) -> None:
    served = own(sessions_max=2)
    for name in ("a", "b", "c"):
        served.cell("x = 1", name)
    assert set(served.ask("GET", "/sessions")["sessions"]) == {"b", "c"}


def test_sessions_that_take_too_much_memory_together_lose_the_oldest(own: Callable[..., Served]) -> None:
    served = own(session_memory_mb=150, memory_mb=512)
    for name in ("a", "b"):
        served.cell("x = bytearray(100 << 20)", name)
    wait_for("the eviction", lambda: set(served.ask("GET", "/sessions")["sessions"]) == {"b"})


def test_a_session_that_needs_too_much_memory_does_not_affect_others(box: Served) -> None:
    other, session = box.new_session(), box.new_session()
    box.cell("x = 1", other)
    answer = box.cell("y = bytearray(2 << 30)", session)
    assert answer["process_status"] == "error" and "MemoryError" in answer["stdout"]
    assert box.cell("x", other)["stdout"] == "1\n"


FORGED_END = """
import os
os.write(3, b'{"event": "done", "cell": 2, "failed": false}')
while True:
    pass
"""
THREAD = """
import threading
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
"""


def test_a_session_that_goes_on_after_its_cell_is_ended(box: Served) -> None:
    names = [box.new_session() for _ in range(2)]
    for session, code in zip(names, (FORGED_END, THREAD), strict=True):
        box.cell("pass", session)  # its start may take long on a busy machine
        assert box.cell(code, session, timeout=4)["process_status"] == "completed"
    wait_for("the end of both", lambda: not set(names) & set(box.ask("GET", "/sessions")["sessions"]))
    for session in names:
        assert box.cell("1", session)["new_session_created"] is True
        box.ask("DELETE", f"/sessions/{session}")


def test_a_session_may_work_a_little_between_its_cells(strong: Served) -> None:
    session = strong.new_session()
    code = "import threading, time\ndone = []\nthreading.Timer(2, lambda: done.append(1)).start()"
    strong.cell(code, session, timeout=60)
    wait_for("the timer", lambda: strong.cell("len(done)", session)["stdout"] == "1\n")
    strong.ask("DELETE", f"/sessions/{session}")
