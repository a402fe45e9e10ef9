"""Attached shells and commands: the agent's environment, the exit code, and the session's file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.session.attach import NodeUnavailable, agent_environment, shell_of
from muster.rundir import AttemptPaths, RunPaths

SESSION = """
import os, sys
from muster.agent.session.attach import AttachedSession
sys.exit(AttachedSession(sys.argv[1], int(sys.argv[2])).run(sys.argv[3:], dict(os.environ)))
"""
DEADLINE_S = 120


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    Path(attempt.node_record(3)).parent.mkdir(parents=True)
    return attempt


def run_session(path: Path, agent: int, *command: str) -> int:
    argv = [sys.executable, "-c", SESSION, str(path), str(agent), *command]
    return subprocess.run(argv, timeout=DEADLINE_S).returncode


def test_the_environment_is_that_of_the_node_s_agent(attempt: AttemptPaths) -> None:
    with subprocess.Popen(["sleep", "1000"], env={"MUSTER_RANK": "3", "FROM_SETUP": "1"}) as agent:
        try:
            Path(attempt.node_record(3)).write_text(json.dumps({"pid": agent.pid}))
            assert agent_environment(attempt, 3) == {"MUSTER_RANK": "3", "FROM_SETUP": "1"}
        finally:
            agent.kill()


def test_a_node_without_the_rank_s_agent_is_refused(attempt: AttemptPaths) -> None:
    with pytest.raises(NodeUnavailable, match="the agent of node 3 does not run on"):
        agent_environment(attempt, 3)
    Path(attempt.node_record(3)).write_text(json.dumps({"pid": os.getppid()}))  # another process has the pid now
    with pytest.raises(NodeUnavailable, match="the run has ended"):
        agent_environment(attempt, 3)


def test_the_shell_is_the_user_s_where_it_exists() -> None:
    assert shell_of({"SHELL": "/bin/sh"}) == "/bin/sh"
    assert shell_of({"SHELL": "/no/such/shell"}) == "/bin/sh"


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -KILL $$", 137), ('test -e "$0" && exit 7', 7)])
def test_a_session_exits_with_the_command_s_code_and_removes_its_file(tmp_path: Path, command: str, code: int) -> None:
    path = tmp_path / "sessions" / "n1-7"
    wait_for_file = 'until [ -e "$0" ]; do sleep 0.01; done; '
    assert run_session(path, os.getpid(), "sh", "-c", wait_for_file + command, str(path)) == code
    assert not path.exists()


def test_a_session_ends_with_the_node_s_agent(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as agent:
        pass
    assert run_session(tmp_path / "session", agent.pid, "sleep", "1000") == 143


def test_a_command_that_does_not_exist_has_a_shell_s_code(tmp_path: Path) -> None:
    assert run_session(tmp_path / "session", os.getpid(), "no-such-command") == 127
