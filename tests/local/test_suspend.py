"""A run whose processes are all stopped for longer than every lease, and continued, goes on as before."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TAG, tagged_processes
from tests.running import MusterCommand, wait_for

from muster.election.timing import FENCE_S
from muster.process.proctree import read_stat

STOP_S = 32.0
RESUME_SKEW_S = 1.0  # in which all processes are continued
DRIVER = """
import os, time
output = os.environ["MUSTER_OUTPUT_DIR"]
print("cycle", os.environ["MUSTER_CYCLE"], "pid", os.getpid(), flush=True)
while not os.path.exists(os.path.join(output, "finish")):
    with open(os.path.join(output, "beats"), "a") as file:
        file.write(".")
    time.sleep(0.1)
"""


def running(tag: str) -> list[int]:
    """Return the processes of this test that are not stopped."""
    return [pid for pid in tagged_processes(tag) if (fields := read_stat(pid)) and fields[0] not in (b"T", b"Z", b"X")]


def stop_all(tag: str) -> list[int]:
    """Stop all processes, also those that others start meanwhile; return them."""
    while found := running(tag):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(0.01)
    return list(tagged_processes(tag))


def continue_all(pids: list[int]) -> None:
    """Continue all processes within RESUME_SKEW_S, in random order."""
    random.shuffle(pids)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        time.sleep(RESUME_SKEW_S / len(pids))


def beats(muster: MusterCommand) -> int:
    path = muster.run_dir() / "output" / "beats"
    return len(path.read_text()) if path.exists() else 0


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempt-0" / "events-0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "options",
    [
        ("--spares", "1", "--on-node-loss", "restart"),
        pytest.param(("--max-restarts", "1"), marks=pytest.mark.slow),
        pytest.param(("--procs-per-node", "1"), marks=pytest.mark.slow),
    ],
    ids=["failover", "no failover", "gang"],
)
def test_a_suspended_run_goes_on_in_the_same_cycle_under_the_same_leader(
    muster: MusterCommand, options: tuple[str, ...]
) -> None:
    (muster.cwd / "driver.py").write_text(DRIVER)
    tag = os.environ[TAG]
    process = muster.start(*muster.local_args(*options, "--", "python", "driver.py", nodes=3))
    muster.wait_for_driver("cycle 0")
    wait_for("the status to tell", lambda: muster.status()["state"] == "running")
    wait_for("the driver to work", lambda: beats(muster) > 0)
    stopped = stop_all(tag)
    try:
        assert len(stopped) > 6  # agents, their supervisors, the driver
        before = beats(muster)
        assert STOP_S > 2 * FENCE_S
        time.sleep(STOP_S)  # the claim is about time that passes
        assert beats(muster) == before
    finally:
        continue_all(stopped)
    wait_for("the driver to go on", lambda: beats(muster) > before + 5)
    time.sleep(FENCE_S + 2.0)  # a node that was lost would be noticed by now
    (muster.run_dir() / "output" / "finish").touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    status, happened = muster.status(), events(muster.run_dir())
    assert (status["term"], status["lead"], status["cycle"], status["state"]) == (0, 0, 0, "succeeded")
    (suspended,) = [event for event in happened if event["event"] == "suspended"]
    assert STOP_S - 3.0 <= suspended["seconds"] <= STOP_S + 15.0
    assert not [event for event in happened if event.get("state") in ("lost", "failed")]
    assert "suspended for" in (muster.run_dir() / "attempt-0" / "phases.log").read_text()
