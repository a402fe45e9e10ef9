"""`muster top` without a terminal: which run, a line at every change, its end."""

from __future__ import annotations

import os
import pty
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun
from tests.views.synthetic import SyntheticRun, large_run

from muster.cli import top


def at_first_poll(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act while the command waits for the first time."""
    wait, actions = time.sleep, [act]

    def act_and_wait(seconds: float) -> None:
        if actions:
            actions.pop()()
        wait(seconds)

    monkeypatch.setattr(top.time, "sleep", act_and_wait)


def test_a_run_that_ended_has_one_line_and_gets_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(tmp_path)
    run = large_run(tmp_path / "muster-runs" / "train", nodes=8)
    done = invoke("top")
    (line,) = done.out.splitlines()
    assert "succeeded" in line and "the driver exited with 0" in line
    assert os.path.exists(run.paths.report)


def test_every_change_has_a_line_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    monkeypatch.chdir(tmp_path)
    run = SyntheticRun(tmp_path / "muster-runs" / "train", nodes=2)
    run.brings_up()
    run.write("running")
    at_first_poll(monkeypatch, run.ends)
    first, last = invoke("top").out.splitlines()
    assert "running: " in first and "succeeded: " in last


def test_a_live_run_is_preferred_to_a_newer_one_that_ended(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start_run("live")
    start_run("newer").publishes("succeeded").ends(0, "done")
    at_first_poll(monkeypatch, lambda: live.publishes("stopped", end_reason="stopped by ann").ends(143, "x"))
    assert "stopped by ann" in invoke("top").out
    assert "succeeded" in invoke("top").out  # now the newest, since none is live


@pytest.mark.parametrize(("keys", "quits"), [("q", True), ("\x1b", True), ("x", False)])
def test_only_some_keys_quit_and_the_terminal_is_restored(
    keys: str, quits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(theirs)
        with top._open_keyboard() as keyboard:
            assert termios.tcgetattr(theirs) != before
            os.write(ours, keys.encode())
            assert keyboard.wait_for_quit(120) is quits
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_without_a_keyboard_nothing_quits(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with top._open_keyboard() as keyboard:
            assert keyboard.wait_for_quit(0.0) is False
