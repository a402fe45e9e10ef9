"""The process tree as /proc shows it, and the kill of all descendants."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from tests.running import wait_for

from muster.process import proctree
from muster.process.proctree import (
    THREADS,
    descendants,
    is_alive,
    is_leaving,
    kill_groups,
    kill_is_pending,
    newest_first,
    own_descendants,
    read_proc_file,
    read_process,
    read_processes,
    read_stat,
    send_signal,
    start_time,
)

Python = Callable[[str], list[str]]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield child
    child.kill()
    child.wait(120)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill it, and leave it as a zombie."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_live_process_has_its_parent_and_group(sleeper: subprocess.Popen[bytes]) -> None:
    assert read_process(sleeper.pid) == read_processes()[sleeper.pid] == (os.getpid(), sleeper.pid)
    assert not is_leaving(sleeper.pid)


def test_a_zombie_is_not_alive_but_has_a_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    started = start_time(sleeper.pid)
    end(sleeper)
    assert read_process(sleeper.pid) is None and sleeper.pid not in read_processes()
    assert is_leaving(sleeper.pid) and start_time(sleeper.pid) == started is not None


def test_a_process_that_is_gone_has_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait(120)
    assert read_stat(sleeper.pid) == [] and read_process(sleeper.pid) is None and start_time(sleeper.pid) is None
    assert is_leaving(sleeper.pid) and not kill_is_pending(sleeper.pid)
    assert read_proc_file(f"/proc/{sleeper.pid}/comm") == ""


def test_a_zombie_main_thread_with_other_threads_is_alive() -> None:
    fields = read_stat(os.getpid())
    assert is_alive(fields)
    fields[0], fields[THREADS] = b"Z", b"2"
    assert is_alive(fields)
    fields[THREADS] = b"1"
    assert not is_alive(fields) and not is_alive([])


def test_a_name_with_blanks_and_brackets_does_not_shift_the_fields(python: Python) -> None:
    rename = "open('/proc/self/comm', 'w').write('a) Z 1 (b')\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(python(rename), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        assert read_proc_file(f"/proc/{child.pid}/comm") == "a) Z 1 (b\n"
        assert read_process(child.pid) == (os.getpid(), os.getpgrp())
        child.communicate(timeout=120)


def test_a_thread_has_a_stat_file_of_its_own() -> None:
    assert read_stat(os.getpid(), os.getpid())[1] == str(os.getppid()).encode()
    assert read_stat(os.getpid(), 1) == []  # not a thread of this process


@pytest.mark.parametrize(("last", "order"), [(300, [300, 200, 100, 900, 800]), (0, [900, 800, 300, 200, 100])])
def test_pids_above_the_last_one_are_the_oldest(last: int, order: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: ["800", "100", "self", "300", "900", "200"])
        patch.setattr(proctree, "_last_pid", lambda: last)
        assert newest_first() == order


def test_every_process_is_listed_once(sleeper: subprocess.Popen[bytes]) -> None:
    pids = newest_first()
    assert {os.getpid(), sleeper.pid, 1} <= set(pids) and len(set(pids)) == len(pids)


def test_descendants_are_found_nearest_first_and_not_those_of_others() -> None:
    tree = {2: (1, 2), 3: (1, 3), 4: (2, 2), 5: (4, 5), 6: (3, 3), 9: (8, 9)}
    assert descendants(1, tree) == [2, 3, 4, 6, 5]
    assert descendants(4, tree) == [5] and descendants(5, tree) == [] and descendants(8, tree) == [9]


def test_a_grandchild_in_its_own_session_is_a_descendant() -> None:
    family = subprocess.Popen(
        ["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert family.stdout is not None
    grandchild = int(family.stdout.readline())
    try:
        assert {family.pid, grandchild} <= set(descendants(os.getpid()))
    finally:
        os.kill(grandchild, signal.SIGKILL)
        family.communicate(timeout=120)


def test_own_descendants_are_found_without_reading_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    family = subprocess.Popen(
        ["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert family.stdout is not None
    grandchild = int(family.stdout.readline())
    expected = {family.pid: (os.getpid(), family.pid), grandchild: (family.pid, grandchild)}
    try:
        wait_for("the session of the grandchild", lambda: os.getpgid(grandchild) == grandchild)
        with monkeypatch.context() as patch:
            patch.setattr(proctree, "read_processes", lambda: pytest.fail("all of /proc was read"))
            found = own_descendants()
        assert expected.items() <= found.items()
        with monkeypatch.context() as patch:
            patch.setattr(proctree, "_children_of_thread", lambda thread: None)  # an old kernel
            assert expected.items() <= own_descendants().items()
    finally:
        os.kill(grandchild, signal.SIGKILL)
        family.communicate(timeout=120)
    assert not expected.keys() & own_descendants().keys()


def test_a_signal_to_a_gone_process_is_no_error_and_a_forbidden_one_is_reported(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert send_signal(sleeper.pid, signal.SIGKILL) and sleeper.wait(120) == -signal.SIGKILL
    assert send_signal(sleeper.pid, signal.SIGKILL)

    def refuse(pid: int, signum: int) -> None:
        raise PermissionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        assert not send_signal(sleeper.pid, signal.SIGKILL)


def test_groups_are_killed_once_and_never_one_s_own_nor_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def kill(group: int, signum: int) -> None:
        assert signum == signal.SIGKILL
        killed.append(group)
        raise ProcessLookupError  # gone meanwhile: the others are killed nevertheless

    monkeypatch.setattr(os, "killpg", kill)
    kill_groups([0, 1, os.getpgrp(), 7_000_001, 7_000_002, 7_000_001])
    assert sorted(killed) == [7_000_001, 7_000_002]


def test_a_live_process_has_no_pending_kill(sleeper: subprocess.Popen[bytes]) -> None:
    assert not kill_is_pending(sleeper.pid)


KILLER = """
import os, signal, subprocess
from muster.process.proctree import become_subreaper, ended_child, kill_descendants, own_children
become_subreaper()
try:
    ended_child()
except ChildProcessError:
    print("no children", own_children(), flush=True)
spared = subprocess.Popen(["sleep", "1000"], start_new_session=True)
script = "setsid sh -c 'sleep 1000 & echo $!; exec sleep 1000' & wait"
shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
inner = int(shell.stdout.readline())
print("all live:", ended_child(), sorted(own_children()) == sorted([spared.pid, shell.pid]), flush=True)
noted = []
killed, foreign = kill_descendants(spared=[spared.pid], before=noted.extend)
print("killed:", len(killed), inner in killed, shell.pid in killed, spared.pid in killed, noted == killed, foreign)
shell.wait()
reaped = 0
while own_children() != [spared.pid]:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert os.waitpid(ended_child(), 0)[1] == signal.SIGKILL
    reaped += 1
print("adopted and reaped:", reaped, spared.poll(), flush=True)
spared.kill()
spared.wait()
"""


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/children"), reason="this kernel has no list of children")
def test_a_subreaper_kills_and_adopts_all_its_descendants_but_those_it_spares(python: Python) -> None:
    done = subprocess.run(python(KILLER), capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "no children []",
        "all live: None True",
        "killed: 3 True True False True []",
        "adopted and reaped: 2 None",
    ], done.stdout + done.stderr


def test_a_file_of_proc_is_read_as_text_whatever_it_holds() -> None:
    child = subprocess.Popen(["sleep", "1000"], env={b"A": b"\xff"})  # type: ignore[dict-item]
    try:
        wait_for("the program", lambda: read_proc_file(f"/proc/{child.pid}/comm") == "sleep\n")
        assert read_proc_file(f"/proc/{child.pid}/environ") == "A=\ufffd\0"
    finally:
        child.kill()
        child.wait(120)
