"""The agent's guardian: what it certifies, what it passes on, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.agent.conftest import DEADLINE_S, identity
from tests.running import wait_for

from muster.agent.environment import control_directory
from muster.agent.guardian import certify
from muster.process.proctree import read_process
from muster.rundir import read_record, write_json

NODE, TERM = 1, 4
# Prints the pid of the agent once it is ready, then waits.
PROGRAM = """
import asyncio, os, signal, subprocess, sys
from muster.agent.guardian import AgentSignals, start_guardian
from muster.agent.job import Identity
from muster.rundir import RunPaths

run = RunPaths(sys.argv[1])
{setup}
guardian = start_guardian(Identity(1, "n1", run, run.attempt(0), True))

async def main():
    signals = AgentSignals(guardian)
    signals.handle(signal.SIGUSR1, lambda: print("signal", flush=True))
    signals.handle(signal.SIGUSR2, lambda: print("last", flush=True))
    {body}
    print(os.getpid(), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
CLAIM = f"guardian.note_claim({TERM})"


@contextmanager
def agent(directory: Path, body: str = CLAIM, setup: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run an agent whose claim to the term is in the run directory; yield its guardian and the agent's pid."""
    attempt = identity(directory, NODE).attempt
    write_json(attempt.leader(TERM), {"term": TERM, "rank": NODE})
    program = PROGRAM.format(body=body, setup=setup)
    guardian = subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert guardian.stdout is not None
    with guardian.stdout:
        try:
            yield guardian, int(guardian.stdout.readline())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guardian.pid, signal.SIGKILL)
            guardian.wait()


def certificate(directory: Path) -> dict[str, object]:
    return read_record(identity(directory, NODE).attempt.leader_gone(TERM))


def test_the_end_of_a_killed_agent_that_has_claimed_a_term_is_certified(tmp_path: Path) -> None:
    with agent(tmp_path) as (guardian, pid):
        assert pid != guardian.pid
        os.kill(pid, signal.SIGKILL)
        assert guardian.wait(DEADLINE_S) == -signal.SIGKILL  # the launcher sees how the agent ended
    found = certificate(tmp_path)
    assert (found["term"], found["rank"], found["host"]) == (TERM, NODE, "n1")
    assert identity(tmp_path, NODE).attempt.leaders_gone() == [TERM]
    assert identity(tmp_path, NODE).attempt.claims() == [TERM]


def test_a_certificate_waits_for_the_last_process_of_the_agent(tmp_path: Path) -> None:
    """Even one that has left its session and whose parent has ended."""
    spawn = "subprocess.run(['setsid', 'sh', '-c', 'sleep 1000 & echo $! >' + sys.argv[1] + '/left'])"
    with agent(tmp_path, body=f"{CLAIM}; {spawn}") as (guardian, pid):
        left = int((tmp_path / "left").read_text())
        os.kill(pid, signal.SIGKILL)
        wait_for("the guardian to adopt it", lambda: read_process(left) == (guardian.pid, read_process(left)[1]))  # type: ignore[index]
        assert guardian.poll() is None and not certificate(tmp_path)
        os.kill(left, signal.SIGKILL)
        guardian.wait(DEADLINE_S)
    assert certificate(tmp_path)


def test_processes_of_the_setup_do_not_delay_a_certificate_and_end_with_the_agent(tmp_path: Path) -> None:
    setup = "child = subprocess.Popen(['sleep', '1000'])"
    body = f"{CLAIM}; print(child.pid, file=open(sys.argv[1] + '/child', 'w'))"
    with agent(tmp_path, body, setup) as (guardian, pid):
        child = int((tmp_path / "child").read_text())
        os.kill(pid, signal.SIGKILL)
        guardian.wait(DEADLINE_S)
        assert certificate(tmp_path)
        os.kill(child, signal.SIGKILL)


def test_an_agent_that_ends_by_itself_leaves_no_process_of_the_setup(tmp_path: Path) -> None:
    setup = "child = subprocess.Popen(['sleep', '1000'])"
    body = "print(child.pid, file=open(sys.argv[1] + '/child', 'w')); print(0, flush=True); os._exit(7)"
    with agent(tmp_path, body, setup) as (guardian, _):
        assert guardian.wait(DEADLINE_S) == 7
    assert read_process(int((tmp_path / "child").read_text())) is None


def test_a_killed_agent_leaves_no_directory_for_control_requests(tmp_path: Path) -> None:
    with agent(tmp_path) as (guardian, pid):
        left, others = (Path(control_directory(identity(tmp_path, node), 3)) for node in (NODE, NODE + 1))
        for directory in (left, others):
            directory.mkdir(parents=True, exist_ok=True)
        (left / "request.json").touch()
        os.kill(pid, signal.SIGKILL)
        assert guardian.wait(DEADLINE_S) == -signal.SIGKILL
    assert not left.exists() and others.exists()
    others.rmdir()
    others.parent.rmdir()


def test_an_agent_that_has_claimed_nothing_needs_no_certificate(tmp_path: Path) -> None:
    with agent(tmp_path, body="pass") as (guardian, pid):
        os.kill(pid, signal.SIGKILL)
        assert guardian.wait(DEADLINE_S) == -signal.SIGKILL
    assert not certificate(tmp_path)


def test_a_guardian_that_is_killed_takes_the_agent_with_it_and_certifies_nothing(tmp_path: Path) -> None:
    with agent(tmp_path) as (guardian, pid):
        guardian.kill()
        wait_for("the agent to end", lambda: read_process(pid) is None)
    assert not certificate(tmp_path)


@pytest.mark.parametrize("both", [False, True], ids=["guardian", "guardian and agent"])
def test_a_signal_is_handled_once_whichever_process_it_was_sent_to(tmp_path: Path, both: bool) -> None:
    with agent(tmp_path) as (guardian, pid):
        assert guardian.stdout is not None
        for target in [pid, guardian.pid] if both else [guardian.pid]:
            os.kill(target, signal.SIGUSR1)
        lines = [guardian.stdout.readline()]
        os.kill(guardian.pid, signal.SIGUSR2)  # passed on after the first one
        while lines[-1] not in ("last\n", ""):  # nothing: the agent has ended
            lines.append(guardian.stdout.readline())
        assert lines == ["signal\n", "last\n"]


def test_a_signal_that_arrives_before_the_guardian_has_handlers_waits_for_them(tmp_path: Path) -> None:
    """The guardian signals itself right after the fork, before it has any handler."""
    setup = "fork = os.fork\ndef signalled():\n    pid = fork()\n"
    setup += "    if pid: os.kill(os.getpid(), signal.SIGUSR1)\n    return pid\nos.fork = signalled"
    with agent(tmp_path, setup=setup) as (guardian, _):
        assert guardian.stdout is not None
        os.kill(guardian.pid, signal.SIGUSR2)
        lines = {guardian.stdout.readline(), guardian.stdout.readline()}
    assert lines == {"signal\n", "last\n"}


def test_a_stopped_agent_has_not_ended(tmp_path: Path) -> None:
    with agent(tmp_path) as (guardian, pid):
        os.kill(pid, signal.SIGSTOP)
        assert guardian.poll() is None and not certificate(tmp_path)
        os.kill(pid, signal.SIGKILL)
        assert guardian.wait(DEADLINE_S) == -signal.SIGKILL
    assert certificate(tmp_path)


def test_a_claim_of_another_node_is_not_certified(tmp_path: Path) -> None:
    write_json(identity(tmp_path, NODE).attempt.leader(TERM), {"term": TERM, "rank": 2})
    certify(identity(tmp_path, NODE), [TERM])
    assert not certificate(tmp_path)


def test_nothing_is_certified_after_the_end_of_the_run(tmp_path: Path) -> None:
    attempt = identity(tmp_path, NODE).attempt
    write_json(attempt.leader(TERM), {"term": TERM, "rank": NODE})
    write_json(attempt.outcome, {"exit_code": 0})
    certify(identity(tmp_path, NODE), [TERM])
    assert not certificate(tmp_path)
