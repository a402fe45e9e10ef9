"""A stalled driver is ended with its stacks kept, and nodes that fail the health check are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.running import RAY_EXTRAS, MusterCommand

import muster as library

SILENT = "import time\nprint('begun')\n\ndef deep_in_thought():\n    time.sleep(3600)\n\ndeep_in_thought()\n"


def test_a_stalled_driver_is_ended_and_where_it_was_is_kept(muster: MusterCommand) -> None:
    (muster.cwd / "silent.py").write_text(SILENT)
    done = muster.local("--stall-timeout", "4s", "--", "python", "silent.py")
    assert done.returncode == 125
    status = muster.status()
    assert (status["state"], status["outcome"]["phase"]) == ("failed", "stalled")
    assert "no output and no muster.beat() for 4 s" in status["end_reason"]
    logs = muster.run_dir() / "attempt-0" / "logs"
    stacks = (logs / "stacks-0000.txt").read_text() + (logs / "driver.log").read_text()
    assert "deep_in_thought" in stacks
    assert (logs / "stacks-0001.txt").exists()


def test_where_there_is_py_spy_every_python_process_of_the_run_is_seen(muster: MusterCommand) -> None:
    if not (RAY_EXTRAS / "bin" / "py-spy").exists():
        pytest.skip("py-spy is not installed")
    (muster.cwd / "silent.py").write_text(SILENT)
    path = f"PATH={RAY_EXTRAS}/bin:{os.environ['PATH']}"
    done = muster.local("--stall-timeout", "4s", "--env", path, "--", muster.python, "silent.py")
    assert done.returncode == 125
    assert "deep_in_thought" in (muster.run_dir() / "attempt-0" / "logs" / "stacks-0000.txt").read_text()


def test_a_driver_that_beats_is_not_taken_for_stalled(muster: MusterCommand) -> None:
    beats = "import muster, time\nfor _ in range(80):\n    muster.beat()\n    time.sleep(0.1)\n"
    done = muster.local("--stall-timeout", "6s", "--", muster.python, "-c", beats)
    assert done.returncode == 0, done.stderr


def test_a_beat_outside_a_run_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library.beat()
    monkeypatch.setenv("MUSTER_BEAT_FILE", str(tmp_path / "gone" / "beat"))
    library.beat()
    assert not (tmp_path / "gone").exists()


def test_a_node_that_fails_its_health_check_is_named_with_what_the_check_said(muster: MusterCommand) -> None:
    check = "if [ $MUSTER_RANK = 1 ]; then echo 'GPU 3 has fallen off the bus'; false; fi"
    done = muster.local("--health-check", check, "--", "true", nodes=3)
    assert done.returncode == 125
    error = muster.status()["error"]
    assert (error["host"], error["reason"]) == (
        "node-1",
        "--health-check failed: GPU 3 has fallen off the bus (code 1)",
    )


def test_a_health_check_cannot_change_what_follows_it(muster: MusterCommand) -> None:
    done = muster.local("--health-check", "X=1; export X; cd /; exit 0", "--", "bash", "-c", "echo ${X-unset} $PWD")
    assert (done.returncode, done.stdout) == (0, f"unset {muster.cwd}\n")


def test_a_dedicated_head_needs_a_second_node(muster: MusterCommand) -> None:
    done = muster.local("--dedicated-head", "--", "true", nodes=1, ray=True)
    assert done.returncode == 2
    assert "--nodes 2 or more" in done.stderr
