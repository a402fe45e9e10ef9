"""`muster up`, `attach`, `exec`, `run --in`, `tunnel` and `down` work on this machine, without Ray."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator

import pytest
from tests.running import DEADLINE_S, MusterCommand, wait_for

from muster.cli.errors import run_command_line
from muster.cli.main import cli


def up_args(muster: MusterCommand, *args: str, nodes: int = 2) -> list[str]:
    return ["up", "--backend", "local", "--nodes", str(nodes), "--no-ray", "--python", muster.python, *args]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MusterCommand]:
    """One idle cluster of two nodes for all tests that leave it as it is; it is the only run of its directory."""
    cwd = tmp_path_factory.mktemp("cluster")
    muster = MusterCommand(cwd, sys.executable, {"HOME": str(cwd), "XDG_STATE_HOME": str(cwd / "state")})
    given = ["--env", "GREETING=hello", "--setup", "export FROM_SETUP=yes; export SHELL=/bin/sh"]
    done = muster(*up_args(muster, *given))
    try:
        assert done.returncode == 0, done.stderr
        yield muster
    finally:
        muster("down")


def test_a_cluster_is_brought_up_used_and_taken_down_with_success(muster: MusterCommand) -> None:
    done = muster(*up_args(muster))
    assert done.returncode == 0, done.stderr
    run = muster.run_dir().name
    assert done.stdout == f"{run}\t-\n"
    assert f"muster attach {run}" in done.stderr and f"muster down {run}" in done.stderr
    trap = "exec 3<> <(:); trap 'echo saving; exit 4' TERM; echo ready; while :; do read -t 0.1 -u 3; done"
    guest = muster.start("run", "--in", run, "--", "bash", "-c", trap)
    wait_for("the guest", lambda: "ready\n" in guest_output(muster))
    down = muster("down")
    assert (down.returncode, down.stdout) == (0, f"{run}: succeeded: the cluster was shut down\n")
    assert (guest.communicate(timeout=180)[0], guest.returncode) == ("ready\nsaving\n", 4)
    assert muster.status()["exit_code"] == 0
    assert muster("down").stdout == "no cluster is up\n"
    refused = muster("attach", run)
    assert refused.returncode != 0 and f"{run} has ended (succeeded" in refused.stderr
    assert "no run is live" in muster("exec", "--", "true").stderr


def test_exec_has_the_driver_s_environment_and_passes_output_errors_and_code(shared: MusterCommand) -> None:
    run = shared.run_dir().name
    show = (
        "echo $GREETING $FROM_SETUP $MUSTER_RUN_ID $MUSTER_ATTEMPT $MUSTER_RANK; pwd; python -V; echo bad >&2; exit 7"
    )
    done = shared("exec", "--node", "1", "--", "bash", "-c", show)
    version = f"Python {sys.version.split()[0]}"
    assert done.stdout == f"hello yes {run} 0 1\n{shared.cwd}\n{version}\n", done.stderr
    assert (done.stderr, done.returncode) == ("bad\n", 7)
    assert shared("exec", run, "--node", "node-1", "--", "bash", "-c", "kill -9 $$").returncode == 137
    assert shared("exec", "--", "no-such-command").returncode == 127
    assert "has nodes 0 to 1: node-0, node-1" in shared("exec", "--node", "2", "--", "true").stderr
    assert "write it after --" in shared("exec", run).stderr


def test_a_signal_to_exec_reaches_the_command(shared: MusterCommand) -> None:
    trap = "exec 3<> <(:); trap 'exit 6' INT; touch $MUSTER_OUTPUT_DIR/ready; while :; do read -t 0.1 -u 3; done"
    process = shared.start("exec", "--", "bash", "-c", trap)
    wait_for("the command", (shared.run_dir() / "output" / "ready").exists)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 6


def test_a_shell_at_a_terminal_is_attached_with_a_terminal(shared: MusterCommand) -> None:
    ours, theirs = pty.openpty()
    process = shared.start(
        "attach", "--node", "1", stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, text=False
    )
    os.close(theirs)
    os.write(ours, b"tty; echo rank-$GREETING; exit 5\n")
    said = read_all(ours)
    assert process.wait(timeout=180) == 5
    assert b"/dev/pts/" in said and b"rank-hello" in said, said
    os.close(ours)


def read_all(terminal: int) -> bytes:
    """Everything until the other side is gone."""
    said, end = b"", time.monotonic() + DEADLINE_S
    while time.monotonic() < end and select.select([terminal], [], [], DEADLINE_S)[0]:
        try:
            said += os.read(terminal, 4096)
        except OSError:  # the last process has closed it
            break
    return said


def test_a_guest_is_another_driver_and_its_code_is_the_command_s(shared: MusterCommand) -> None:
    run = shared.run_dir().name
    (shared.cwd / "there").mkdir()
    show = "echo $GREETING $MORE $MUSTER_RUN_ID; pwd; exit 9"
    done = shared("run", "--in", run, "--env", "MORE=verysecret", "--workdir", "there", "--", "bash", "-c", show)
    assert (done.returncode, done.stdout) == (9, f"hello verysecret {run}\n{shared.cwd}/there\n"), done.stderr

    def ended() -> list[str]:
        ends = [("ended", 9)]
        return [guest["id"] for guest in shared.status()["guests"] if (guest["state"], guest["exit_code"]) in ends]

    (guest,) = wait_for("the guest's end in the status", ended)
    assert shared.status()["state"] == "running"
    assert f"guest {guest} ended, exit code 9" in shared("status").stdout
    for path in shared.run_dir().rglob("*"):
        if path.is_file() and path.name != f"guest-{guest}.log" and path.stat().st_mode & 0o077:
            assert "verysecret" not in path.read_text(errors="replace"), path


def test_an_interrupt_ends_the_guest_and_not_the_cluster(shared: MusterCommand) -> None:
    run = shared.run_dir().name
    trap = "exec 3<> <(:); trap 'echo saving; exit 4' TERM; echo ready; while :; do read -t 0.1 -u 3; done"
    process = shared.start("run", "--in", run, "--", "bash", "-c", trap)
    wait_for("the guest", lambda: "ready\n" in guest_output(shared))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (4, "ready\nsaving\n")
    assert "ending the guest; the cluster continues" in err
    assert shared.status()["state"] == "running"


def test_a_checkpoint_signal_reaches_guests_and_does_not_end_an_idle_cluster(shared: MusterCommand) -> None:
    trap = "exec 3<> <(:); trap 'exit 3' USR2; echo trapped; while :; do read -t 0.1 -u 3; done"
    process = shared.start("run", "--in", shared.run_dir().name, "--", "bash", "-c", trap)
    wait_for("the guest", lambda: "trapped\n" in guest_output(shared))
    os.kill(shared.agent_pid(0), signal.SIGUSR2)  # as Slurm does for --signal
    process.communicate(timeout=180)
    assert process.returncode == 3
    assert shared.status()["state"] == "running"


def guest_output(muster: MusterCommand) -> str:
    return "".join(path.read_text() for path in muster.run_dir().glob("attempt-0/logs/guest-*.log"))


def test_a_run_with_a_command_takes_guests_and_sessions_too_but_is_not_taken_down(muster: MusterCommand) -> None:
    muster.local("--detach", "--", "bash", "-c", "echo ready; sleep 1000")
    run = muster.wait_for_driver("ready").name
    assert muster("run", "--in", run, "--", "echo", "guest").stdout == "guest\n"
    assert muster("attach", "--", "echo", "session").stdout == "session\n"
    assert f"end it with: muster stop {run}" in muster("down", run).stderr
    assert muster("stop").returncode == 0


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["up", "--no-ray", "--", "true"], "`muster up` takes no COMMAND"),
        (
            ["run", "--in", "x", "--nodes", "3", "--dry-run", "--", "true"],
            "--dry-run, --nodes: not with --in, which uses a cluster as",
        ),
        (["run", "--in", "x", "--", "true"], "no run or job x"),
        (["run", "--in", "x"], "no command to run"),
        (["run", "--idle-timeout", "3s", "--", "true"], "--idle-timeout is for `muster up`"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    shared: MusterCommand,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(shared.cwd)
    assert run_command_line(cli, args) != 0
    assert why in capsys.readouterr().err


def test_a_cluster_that_does_not_come_up_says_why_and_what_waits_can_be_left(muster: MusterCommand) -> None:
    failed = muster(*up_args(muster, "--setup", "false"))
    assert failed.returncode == 125 and "--setup failed" in failed.stderr
    first = muster.run_dir()
    waiting = muster.start(*up_args(muster, "--setup", "until [ -e go ]; do sleep 0.1; done"))
    run = wait_for("the second run", lambda: [path.name for path in muster.run_dirs() if path != first])[0]
    wait_for("its start", (first.parent / run / "attempt-0" / "canary").exists)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=180)
    assert waiting.returncode == 130 and f"End it: muster down {run}" in err
    refused = muster("attach", run)
    assert refused.returncode != 0 and f"{run} is still gathering; `muster status --watch {run}`" in refused.stderr
    assert "stopped" in muster("down").stdout
    (muster.cwd / "go").touch()


def test_an_idle_cluster_ends_by_itself_but_not_under_a_guest(muster: MusterCommand) -> None:
    up = muster.start(*up_args(muster, "--idle-timeout", "2s", nodes=1))
    attempt = wait_for("the run", muster.run_dirs)[0] / "attempt-0"
    wait_for("its start", (attempt / "canary").exists)
    held = attempt / "sessions" / "test"
    held.parent.mkdir()
    held.touch()  # a session, until there is a guest
    up.communicate(timeout=180)
    assert muster("exec", "--", "bash", "-c", f"ls {held.parent} | wc -l").stdout == "2\n"
    wait = "echo ready; until [ -e alone ]; do sleep 0.1; done; sleep 4"
    guest = muster.start("run", "--in", attempt.parent.name, "--", "bash", "-c", wait)
    wait_for("the guest", lambda: "ready\n" in guest_output(muster))
    assert list(held.parent.iterdir()) == [held]
    held.unlink()
    (muster.cwd / "alone").touch()
    guest.communicate(timeout=180)
    assert guest.returncode == 0  # it was not ended, though it took longer than the timeout
    wait_for("the cluster to end", (attempt / "outcome").exists)
    assert json.loads((attempt / "outcome").read_text())["exit_code"] == 0
    assert "the cluster was unused for 2 s and ends" in muster("logs").stdout
    assert muster.status()["state"] == "succeeded"


def test_on_one_machine_a_tunnel_is_the_address_itself(
    shared: MusterCommand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shared.cwd)
    run = shared.run_dir().name
    for words in (["8080"], [run, "8080"]):
        assert run_command_line(cli, ["tunnel", *words]) == 0
        assert capsys.readouterr().out == "http://127.0.0.1:8080\n"
    for words, why in (
        ([], f"{run} was started without --dashboard"),
        (["model"], "it has no services"),
        ([run, "70000"], "70000 is not a port"),
    ):
        assert run_command_line(cli, ["tunnel", *words]) != 0
        assert why in capsys.readouterr().err


def test_a_run_of_another_machine_s_is_not_entered_from_here(shared: MusterCommand) -> None:
    path = shared.run_dir() / "submission.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "host": "elsewhere"}))
    assert "runs on elsewhere, not on this machine" in shared("exec", "--", "true").stderr
    path.write_text(json.dumps({**record, "host": socket.gethostname()}))
