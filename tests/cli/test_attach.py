"""`muster attach`: a shell, or a command, on a node."""

from __future__ import annotations

import os
import pty

from tests.cli.invocation import Invoke, StartRun, node_program
from tests.running import MusterCommand


def test_without_a_terminal_the_session_gets_an_empty_command_and_sets_the_exit_code(
    start_run: StartRun, muster: MusterCommand
) -> None:
    node_program(start_run("train"), 'echo "$MUSTER_SESSION_COMMAND"; exit 5')
    done = muster("attach")
    assert (done.returncode, done.stdout, done.stderr) == (5, "[]\n", "")


def test_a_shell_on_a_terminal_is_announced_with_its_node(start_run: StartRun, muster: MusterCommand) -> None:
    node_program(start_run("train"), "exit 0", node_index=1)
    ours, theirs = pty.openpty()
    process = muster.start("attach", "train", "--node", "1", stdin=theirs, stdout=theirs)
    os.close(theirs)
    _, err = process.communicate(timeout=180)
    os.close(ours)
    assert (process.returncode, err) == (0, "train, node 1 on n1: leave with `exit`\n")


def test_the_usage_shows_that_a_command_is_optional(invoke: Invoke) -> None:
    assert invoke("attach", "--help").out.startswith("Usage: muster attach [OPTIONS] [RUN] [-- COMMAND...]\n")


def test_an_unknown_node_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    done = invoke("attach", "--node", "n9")
    assert done.code == 2 and "--node n9: train has nodes 0 to 1: n0, n1" in done.err
