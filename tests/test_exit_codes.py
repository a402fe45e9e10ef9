"""Exit codes: those that are told apart are different, and those of shells are the shells'."""

from __future__ import annotations

import signal
import subprocess

from muster import exit_codes


def test_the_ends_of_a_node_before_its_agent_runs_are_told_apart_by_their_code() -> None:
    names = (
        "CONTAINER_FAILED",
        "RUN_DIR_NOT_VISIBLE",
        "SETUP_FAILED",
        "OLD_PYTHON",
        "HEALTH_CHECK_FAILED",
        "NO_PYTHON",
    )
    codes = {getattr(exit_codes, name) for name in names}
    assert len(codes) == len(names)
    assert not codes & {exit_codes.NO_PROGRESS, exit_codes.INFRASTRUCTURE_FAILED, exit_codes.BAD_INPUT}


def test_codes_of_signals_are_those_of_shells() -> None:
    assert exit_codes.INTERRUPTED == exit_codes.BY_SIGNAL + signal.SIGINT
    assert exit_codes.TERMINATED == exit_codes.BY_SIGNAL + signal.SIGTERM


def test_codes_of_commands_that_do_not_start_are_those_of_shells() -> None:
    def code(command: str) -> int:
        return subprocess.run(["sh", "-c", command], capture_output=True, timeout=120).returncode

    assert code("no-such-command-anywhere") == exit_codes.NOT_STARTED == exit_codes.NO_PYTHON
    assert code("/etc/passwd") == exit_codes.NOT_EXECUTABLE
