"""`muster exec`: a command on a node replaces the process and passes everything on."""

from __future__ import annotations

from tests.cli.invocation import Invoke, StartRun, node_program
from tests.running import MusterCommand


def test_the_command_gets_stdout_stderr_and_sets_the_exit_code(start_run: StartRun, muster: MusterCommand) -> None:
    run = start_run("train")
    node_program(run, 'echo "$MUSTER_SESSION_COMMAND $5"; echo bad >&2; exit 7', node_index=1)
    done = muster("exec", "train", "--node", "n1", "--", "ls", "--node", "x y")
    assert (done.returncode, done.stderr) == (7, "bad\n")
    assert done.stdout == f'["ls", "--node", "x y"] {run.attempt(0).root}\n'


def test_without_a_command_it_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    done = invoke("exec", "train")
    assert (done.code, done.out) == (2, "") and "no command given: write it after --" in done.err


def test_without_a_live_run_it_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train").publishes("succeeded", end_reason="done").ends(0, "done")
    done = invoke("exec", "--", "true")
    assert done.code == 1 and "no run is live" in done.err
    done = invoke("exec", "train", "--", "true")
    assert done.code == 1 and "train has ended (succeeded: done)" in done.err


def test_the_usage_shows_that_a_command_is_needed(invoke: Invoke) -> None:
    assert invoke("exec", "--help").out.startswith("Usage: muster exec [OPTIONS] [RUN] -- COMMAND...\n")
