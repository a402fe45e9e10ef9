"""A handle refers to one process, never to a later one with its pid; it also works without pidfds."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from tests.process.conftest import DEADLINE_S

from muster.process.pidfd import ProcessHandle, wait_for_one


@pytest.fixture(params=["pidfd", "number", "number to signal"])
def process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    if request.param == "number":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param == "number to signal":
        monkeypatch.delattr(signal, "pidfd_send_signal")
    return subprocess.Popen(["sleep", "1000"])


def test_a_signal_reaches_the_process_and_no_other_after_its_end(process: subprocess.Popen[bytes]) -> None:
    handle = ProcessHandle(process.pid)
    assert handle.send(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == -signal.SIGTERM
    assert handle.send(signal.SIGKILL)  # no process left: no error
    handle.release()


def test_waiting_ends_with_one_of_them_and_leaks_nothing() -> None:
    before = os.listdir("/proc/self/fd")
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    handles = [ProcessHandle(process.pid) for process in processes]
    handles[1].send(signal.SIGKILL)
    wait_for_one(handles, DEADLINE_S)
    assert [handle.gone for handle in handles] == [False, True, False]
    for handle in handles:
        handle.send(signal.SIGKILL)
    for process in processes:
        process.wait(DEADLINE_S)
    for handle in handles:
        handle.release()
    wait_for_one(handles, 0)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_is_gone_already_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait(DEADLINE_S)
    handle = ProcessHandle(process.pid)
    assert handle.gone and handle.send(signal.SIGKILL)
