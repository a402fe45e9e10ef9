"""Processes of the lab are identified by pid and start time and are killed without an effect on others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from muster.lab import LabError, process
from muster.lab.process import ProcessId, all_pids, kill_all, namespace_id


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait(120)


def found(pid: int) -> ProcessId:
    one = ProcessId.find(pid)
    assert one is not None
    return one


def test_a_process_is_alive_until_it_ends_even_before_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    one = found(sleeper.pid)
    assert one.alive()
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not one.alive()
    sleeper.wait(120)
    assert not one.alive() and ProcessId.find(sleeper.pid) is None


def test_a_later_process_with_the_same_pid_is_another_one(sleeper: subprocess.Popen[bytes]) -> None:
    now = found(sleeper.pid)
    earlier = ProcessId(now.pid, now.started - 1)
    assert not earlier.alive()
    kill_all([earlier])
    assert now.alive() and sleeper.poll() is None


def test_all_processes_are_gone_when_killing_returns(sleeper: subprocess.Popen[bytes]) -> None:
    others = [
        subprocess.Popen(["sh", "-c", "trap '' TERM; echo; exec sleep 1000"], stdout=subprocess.PIPE) for _ in range(2)
    ]
    for other in others:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
    all_three = [found(child.pid) for child in (sleeper, *others)]
    kill_all(all_three)
    assert not any(one.alive() for one in all_three)
    for child in (sleeper, *others):
        assert child.wait(120) == -signal.SIGKILL
        if child.stdout is not None:
            child.stdout.close()


def test_killing_no_process_or_an_ended_one_returns_at_once(sleeper: subprocess.Popen[bytes]) -> None:
    one = found(sleeper.pid)
    kill_all([])
    sleeper.kill()
    sleeper.wait(120)
    kill_all([one])


def test_a_process_that_does_not_end_is_reported_and_no_descriptor_stays_open(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.ProcessHandle, "send", lambda handle, signum: True)  # as if it hung in the kernel
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LabError, match=f"not ended 0 s after SIGKILL: processes {sleeper.pid}"):
        kill_all([found(sleeper.pid)], deadline_s=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_every_process_is_listed_with_its_namespaces(sleeper: subprocess.Popen[bytes]) -> None:
    assert {os.getpid(), sleeper.pid} <= set(all_pids())
    own = namespace_id(os.getpid(), "pid")
    assert own is not None and own.startswith("pid:[") and namespace_id(sleeper.pid, "pid") == own
    sleeper.kill()
    sleeper.wait(120)
    assert namespace_id(sleeper.pid, "pid") is None
