"""`muster run` on this machine fails fast and names the cause when a part of the run breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.running import MusterCommand, wait_for

from muster.agent.check_process import PROCESS_NAME
from muster.errors import BackendError
from muster.rundir import RunPaths
from muster.runs import stop as stopping

WAITING = ("--", "bash", "-c", "echo ready; sleep 1000")


def test_an_agent_that_dies_fails_the_run_by_name(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args(*WAITING, nodes=3))
    muster.wait_for_driver("ready")
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "node-1" in err and "index 1" in err
    assert muster.status()["error"]["host"] == "node-1"


def test_an_agent_that_dies_while_others_gather_fails_the_run_by_name(muster: MusterCommand) -> None:
    wait = 'if [ "$MUSTER_RANK" = 2 ]; then read -t 100 < <(sleep 100); fi'
    process = muster.start(*muster.local_args("--setup", wait, "--", "true", nodes=3))
    run = wait_for("the run", muster.run_dirs)[0]
    wait_for("node 1 to join", lambda: _state(run / "attempt-0" / "events-0.jsonl", 1) == "ready")
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "node-1" in err


def test_a_lost_leader_ends_the_run(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args(*WAITING))
    muster.wait_for_driver("ready")
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "node-0" in err


def test_a_lost_supervisor_fails_the_run_and_leaves_nothing(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args(*WAITING))
    run = muster.wait_for_driver("ready")
    os.kill(_supervisor_of(muster.agent_pid(0)), signal.SIGKILL)
    process.communicate(timeout=180)
    assert process.returncode == 125, (run / "attempt-0" / "outcome").read_text()


def test_a_node_that_never_arrives_is_named_at_the_deadline(muster: MusterCommand) -> None:
    late = 'if [ "$MUSTER_RANK" = 1 ]; then read -t 100 < <(sleep 100); fi'
    done = muster.local("--setup", late, "--gather-timeout", "1s", "--", "true", nodes=2)  # no other can be late, too
    assert done.returncode == 125
    assert "node-1 did not arrive within 1 s" in done.stderr


def test_nodes_wait_for_a_leader_that_comes_late(muster: MusterCommand) -> None:
    first = "$PWD/muster-runs/*/attempt-0/nodes/0001.json"
    late = f"[ $MUSTER_RANK != 0 ] || until ls {first} 2>/dev/null; do sleep 0.1; done"
    done = muster.local("--setup", late, "--", "echo", "late but well", nodes=3)
    assert (done.returncode, done.stdout) == (0, "late but well\n"), done.stderr


def test_a_failing_setup_is_named(muster: MusterCommand) -> None:
    done = muster.local("--setup", "echo about to fail; [ $MUSTER_RANK != 1 ]", "--", "true", nodes=2)
    assert done.returncode == 125
    assert "node-1" in done.stderr and "--setup failed with code 1" in done.stderr
    assert "about to fail" in done.stderr


def test_a_setup_that_leaves_the_shell_is_named(muster: MusterCommand) -> None:
    done = muster.local("--setup", "[ $MUSTER_RANK != 1 ] || exit 0", "--", "true", nodes=2)
    assert done.returncode == 125
    assert "node-1" in done.stderr and "--setup ended the shell" in done.stderr


def test_a_stopped_leader_does_not_keep_stop_waiting(muster: MusterCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    muster.local("--detach", "--stop-grace", "1s", *WAITING)
    run = muster.wait_for_driver("ready")
    leader = muster.agent_pid(0)
    os.kill(leader, signal.SIGSTOP)
    try:
        monkeypatch.setattr(stopping, "STOP_MARGIN_S", 1.0)
        with pytest.raises(BackendError, match="did not end within 2 s"):
            stopping.stop_run(RunPaths(str(run)), "a test")
    finally:
        os.kill(leader, signal.SIGCONT)
    wait_for("the outcome", (run / "attempt-0" / "outcome").exists)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_a_full_disk_does_not_turn_success_into_failure(muster: MusterCommand) -> None:
    runs = muster.cwd / "muster-runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(runs)], check=True)
    try:
        fill = "cat /dev/zero >$MUSTER_OUTPUT_DIR/fill 2>/dev/null; exit 0"
        done = muster.local("--", "bash", "-c", fill, nodes=2)
        assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", str(runs)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_a_disk_that_is_full_for_a_while_tears_an_event_and_an_attached_run_goes_on(muster: MusterCommand) -> None:
    """The first driver fills the disk, so that the event with the end of its log does not fit; the second frees it."""
    runs = muster.cwd / "muster-runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(runs)], check=True)
    try:
        (muster.cwd / "driver.sh").write_text(FILLS_THEN_FREES)
        again = ("--max-restarts", "1", "--on-node-loss", "restart", "--restart-on-driver-failure")
        done = muster.local(*again, "--", "bash", "driver.sh", nodes=2, timeout=240)
        assert "Traceback" not in done.stderr
        assert done.returncode == 7, done.stderr
        assert done.stderr.count("could not be read") == 1, done.stderr
        assert "the line was torn" in done.stdout, done.stdout

        events = (muster.run_dir() / "attempt-0" / "events-0.jsonl").read_bytes()
        lines = [_parsed(line) for line in events.split(b"\n") if line]
        assert lines.count(None) == 1, events
        told = [line["event"] for line in lines if line is not None]
        assert told.count("driver_end") == 2 and told[-1] == "end"
        assert next(line["log_tail"][-1][:1] for line in lines if line and line["event"] == "failure") == "x"
        assert "1 line of the events could not be read" in muster("report", "--text").stdout
    finally:
        subprocess.run(["umount", str(runs)], check=True)


FILLS_THEN_FREES = r"""
events=$(echo muster-runs/*/attempt-0/events-0.jsonl)
if [ "$MUSTER_CYCLE" = 0 ]; then
  until grep -q driver_start "$events"; do sleep 0.1; done
  # A status that is being written holds space, and gives it back when it does not fit: the event would fit into that.
  until grep -q '"driver_start": [0-9]' "${events%/*}/status-0.json"; do sleep 0.1; done
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf 'x%.0s' {1..1000}; echo; done
  cat /dev/zero >"$MUSTER_OUTPUT_DIR/fill" 2>/dev/null
  exit 5
fi
for i in {1..1200}; do
  [ -z "$(tail -c 1 "$events")" ] || break # the last line lacks its end
  sleep 0.1
done
torn=$(tail -c 1 "$events")
rm "$MUSTER_OUTPUT_DIR/fill"
[ -z "$torn" ] || echo the line was torn
exit 7
"""


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(line)
        return found
    except ValueError:
        return None


def test_an_interpreter_that_is_missing_on_the_nodes_is_named(muster: MusterCommand) -> None:
    done = muster(
        "run", "--backend", "local", "--no-ray", "--nodes", "2", "--python", "python-that-is-not", "--", "true"
    )
    assert done.returncode == 125
    assert "no Python interpreter at python-that-is-not" in done.stderr


def test_an_interpreter_without_ray_is_named(muster: MusterCommand) -> None:
    bare = "bare/bin/python"
    subprocess.run(["python3", "-m", "venv", "--without-pip", "bare"], cwd=muster.cwd, check=True)
    done = muster("run", "--backend", "local", "--nodes", "2", "--python", bare, "--", "true")
    assert done.returncode == 125
    assert "Ray cannot be imported by" in done.stderr and "No module named 'ray'" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "-3"], "--nodes"),
        (["--nodes", "two"], "--nodes"),
        (["--no-such-flag"], "--sbatch KEY=VALUE"),
        (["--partitoin", "gpu"], "--partition"),
        (["--python", "/no/such/python"], "no such interpreter"),
        (["--workdir", "/no/such/dir"], "no such directory"),
        (["--runs-dir", "/proc/muster"], "cannot write to the runs directory"),
        (["--env", "1BAD=x"], "--env"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_started(muster: MusterCommand, args: list[str], said: str) -> None:
    done = muster("run", "--backend", "local", "--no-ray", *args, "--", "true")
    assert done.returncode != 0
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not muster.run_dirs()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [", "job.yaml"),
        ("nodse: 2\ncommand: [true]", "nodes"),
        ("nodes: many\ncommand: [true]", "nodes"),
        ("nodes: 2", "command"),
        ("- a list", "job.yaml"),
    ],
)
def test_a_bad_job_file_is_one_clear_line(muster: MusterCommand, text: str, said: str) -> None:
    (muster.cwd / "job.yaml").write_text(text)
    done = muster("run", "--backend", "local", "-f", "job.yaml")
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not muster.run_dirs()


def _state(events: os.PathLike[str], rank: int) -> str | None:
    """The last state of a node in the events."""
    try:
        with open(events) as file:
            lines = [json.loads(line) for line in file]
    except OSError:
        return None
    return next((e["state"] for e in reversed(lines) if e["event"] == "node" and e["rank"] == rank), None)


def _supervisor_of(agent: int) -> int:
    """Return the supervisor of the agent's driver: its only child besides the process of the node checks."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (supervisor,) = (pid for pid in children if Path(f"/proc/{pid}/comm").read_bytes().strip() != PROCESS_NAME)
    return int(supervisor)
