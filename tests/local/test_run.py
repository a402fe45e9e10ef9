"""`muster run` works on this machine, without Ray, with the real agent, protocol and cleanup."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from tests.running import DEADLINE_S, MusterCommand, wait_for


def test_the_driver_runs_once_and_its_code_is_the_exit_code(muster: MusterCommand) -> None:
    done = muster.local("--", "bash", "-c", "echo once; exit 7", nodes=3)
    assert (done.returncode, done.stdout) == (7, "once\n")
    assert "all 3 nodes arrived" in done.stderr


def test_success_is_zero_and_the_status_says_so(muster: MusterCommand) -> None:
    done = muster.local("--", "true", nodes=2)
    status = muster.status()
    assert done.returncode == 0, done.stderr
    assert (status["state"], status["driver"]) == ("succeeded", {"state": "ended", "exit_code": 0})
    assert [(n["rank"], n["role"], n["state"]) for n in status["nodes"]] == [
        (0, "active", "gone"),
        (1, "active", "gone"),
    ]
    timings = status["timings"]
    assert timings["job_start"] <= timings["lead_ready"] <= timings["driver_start"] <= timings["driver_end"]
    for key in ("run", "end_reason", "job_id", "backend", "attempt", "cycle", "error"):
        assert key in status


def test_a_signal_that_ends_the_driver_is_128_plus_n(muster: MusterCommand) -> None:
    done = muster.local("--", "bash", "-c", "kill -9 $$", nodes=1)
    assert done.returncode == 137
    assert "SIGKILL" in done.stderr


def test_a_command_that_does_not_exist_is_127_and_named(muster: MusterCommand) -> None:
    done = muster.local("--", "no-such-command-anywhere", nodes=1)
    assert done.returncode == 127
    assert "no-such-command-anywhere" in done.stdout + done.stderr


def test_words_of_the_command_arrive_as_they_were_given(muster: MusterCommand) -> None:
    words = ["it's", 'say "hi"', "$(touch pwned)", "`id`", "a\nb", "$HOME", "back\\slash", "*", "ü", "", "end"]
    done = muster.local("--", "printf", "%s|", *words, nodes=1)
    assert (done.returncode, done.stdout) == (0, "".join(f"{word}|" for word in words))
    assert not (muster.cwd / "pwned").exists()


def test_the_driver_knows_where_it_is(muster: MusterCommand) -> None:
    show = "echo $MUSTER_RUN_ID $MUSTER_ATTEMPT $MUSTER_CYCLE $MUSTER_RESUME $GREETING; touch $MUSTER_OUTPUT_DIR/x; pwd"
    done = muster.local("--env", "GREETING=hello world", "--", "bash", "-c", show, nodes=1)
    run = muster.run_dir()
    assert done.stdout == f"{run.name} 0 0 0 hello world\n{muster.cwd}\n"
    assert (run / "output" / "x").exists()


def test_python_in_the_command_is_the_chosen_interpreter(muster: MusterCommand) -> None:
    done = muster.local("--", "python", "-c", "import sys; print(sys.executable)", nodes=1)
    assert Path(done.stdout.strip()).parent == Path(muster.python).parent


def test_an_active_virtual_environment_is_chosen_over_musters_own(muster: MusterCommand) -> None:
    theirs = muster.cwd / "theirs"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(theirs)], check=True)
    muster.env["VIRTUAL_ENV"] = str(theirs)
    done = muster("run", "--backend", "local", "--no-ray", "--", "python", "-c", "import sys; print(sys.prefix)")
    assert done.stdout.strip() == str(theirs), done.stderr


def test_setup_runs_on_every_node_before_the_agent(muster: MusterCommand) -> None:
    done = muster.local(
        "--setup", "echo set up $MUSTER_RANK; export FROM_SETUP=yes", "--", "bash", "-c", "echo $FROM_SETUP"
    )
    logs = muster.run_dir() / "attempt-0" / "logs"
    assert done.stdout == "yes\n"
    assert [(logs / f"node-000{rank}.log").read_text().splitlines()[0] for rank in (0, 1)] == ["set up 0", "set up 1"]


def test_a_signal_for_the_driver_that_comes_during_the_set_up_ends_nothing(muster: MusterCommand) -> None:
    """Slurm may send it to the task, or to all of the task's processes: to the heartbeat beside the set-up, too."""
    process = muster.start(*muster.local_args("--setup", "until [ -e go ]; do sleep 0.1; done", "--", "true"))
    beats = lambda: sorted(muster.cwd.glob("muster-runs/*/attempt-0/nodes/*.alive"))  # noqa: E731
    wait_for("the heartbeats", lambda: len(beats()) == 2 and all(beat.read_text() for beat in beats()))
    signalled = shells_of_the_set_up(str(muster.run_dir()))
    for pid in signalled:
        os.kill(pid, signal.SIGUSR2)
    before = [beat.read_text() for beat in beats()]
    moved = lambda: all(beat.read_text() not in ("", old) for beat, old in zip(beats(), before, strict=True))  # noqa: E731
    wait_for("the heartbeats to go on", lambda: process.poll() is not None or moved())
    (muster.cwd / "go").touch()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and len(signalled) >= 4, err  # a forked sleep may look like a shell


def shells_of_the_set_up(run: str) -> list[int]:
    """Of each node the prelude and its heartbeat, which is a fork of it."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text() == "bash\n":
                words = (entry / "cmdline").read_text().split("\0")
                if "muster" in words and f"{run}/attempt-0" in words:
                    found.append(int(entry.name))
    return found


def test_a_process_that_escaped_with_setsid_is_ended_too(muster: MusterCommand) -> None:
    done = muster.local("--", "bash", "-c", "setsid sleep 1000 & setsid -f sleep 1001; echo left them", nodes=1)
    assert done.returncode == 0  # that they are gone is what the fixture of every test checks


def test_json_gives_events_output_and_result_as_lines(muster: MusterCommand) -> None:
    done = muster.local("--json", "--", "bash", "-c", "echo out; exit 3", nodes=2)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3
    assert [e["text"] for e in events if e["event"] == "output"] == ["out\n"]
    assert events[-1]["event"] == "result" and events[-1]["exit_code"] == 3
    assert {e["rank"] for e in events if e["event"] == "node" and e["state"] == "arrived"} == {0, 1}


def test_two_runs_at_once_do_not_disturb_each_other(muster: MusterCommand) -> None:
    one = muster.start(*muster.local_args("--", "bash", "-c", "sleep 1; echo one"))
    two = muster.start(*muster.local_args("--", "bash", "-c", "sleep 1; echo two"))
    assert [p.communicate(timeout=180)[0] for p in (one, two)] == ["one\n", "two\n"]
    assert (one.returncode, two.returncode) == (0, 0)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_stops_a_local_run_cleanly(muster: MusterCommand, signum: int, code: int) -> None:
    trap = "exec 3<> <(:); trap 'echo saving; exit 0' TERM; echo ready; while :; do read -t 0.1 -u 3; done"
    process = muster.start(*muster.local_args("--", "bash", "-c", trap))
    muster.wait_for_driver("ready")
    process.send_signal(signum)
    out, err = process.communicate(timeout=180)
    assert "saving" in out and "stopping the run" in err
    assert muster.status()["state"] == "stopped"
    assert process.returncode == 0  # the driver's own code stands: it left by itself


@pytest.mark.parametrize("name", ["USR2", "HUP"])
def test_a_checkpoint_signal_of_slurm_s_reaches_the_driver(muster: MusterCommand, name: str) -> None:
    trap = f"exec 3<> <(:); trap 'echo checkpoint; exit 3' {name}; echo ready; while :; do read -t 0.1 -u 3; done"
    process = muster.start(*muster.local_args("--", "bash", "-c", trap))
    muster.wait_for_driver("ready")
    for rank in (1, 0):  # Slurm signals every task
        os.kill(muster.agent_pid(rank), signal.Signals[f"SIG{name}"])
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (3, "ready\ncheckpoint\n"), err


def test_a_driver_that_ignores_the_request_is_killed_after_its_grace(muster: MusterCommand) -> None:
    stubborn = "exec 3<> <(:); trap '' TERM; echo ready; while :; do read -t 0.1 -u 3; done"
    process = muster.start(*muster.local_args("--stop-grace", "1s", "--", "bash", "-c", stubborn))
    muster.wait_for_driver("ready")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 137


def test_an_interrupt_before_anything_runs_leaves_nothing(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args("--setup", "read -t 30 < <(sleep 30)", "--", "true"))
    wait_for("the run directory", muster.run_dirs)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode != 0


def test_killing_muster_run_outright_ends_the_run(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args("--stop-grace", "1s", "--", "bash", "-c", "echo ready; sleep 1000"))
    run = muster.wait_for_driver("ready")
    process.kill()
    process.communicate()
    outcome = run / "attempt-0" / "outcome"
    wait_for("the outcome", outcome.exists)


def test_detach_then_status_logs_and_stop(muster: MusterCommand) -> None:
    done = muster.local("--detach", "--", "bash", "-c", "echo ready; sleep 1000")
    run_id = done.stdout.split()[0]
    muster.wait_for_driver("ready")
    assert muster.status()["state"] == "running"
    assert muster("logs", run_id).stdout == "ready\n"
    assert "running" in muster("runs").stdout
    stopped = muster("stop")
    assert stopped.returncode == 0 and "stopped by" in stopped.stdout
    assert muster.status()["state"] == "stopped"


def test_stop_refuses_to_guess_between_two_live_runs(muster: MusterCommand) -> None:
    ids = [muster.local("--detach", "--", "sleep", "1000", nodes=1).stdout.split()[0] for _ in range(2)]
    refused = muster("stop")
    assert refused.returncode != 0 and all(run_id in refused.stderr for run_id in ids)
    for run_id in ids:
        assert muster("stop", run_id).returncode == 0


def test_logs_follow_to_the_end_of_the_run(muster: MusterCommand) -> None:
    muster.local("--detach", "--", "bash", "-c", "echo first; sleep 1; echo last", nodes=1)
    assert muster("logs", "-f").stdout == "first\nlast\n"


def test_runs_are_found_from_any_directory(muster: MusterCommand, tmp_path: Path) -> None:
    muster.local("--", "true", nodes=1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    away = MusterCommand(cwd=elsewhere, python=muster.python)
    assert json.loads(away("status", "--json").stdout)["run"] == muster.run_dir().name


def test_secrets_given_by_env_stay_out_of_what_others_may_read(muster: MusterCommand) -> None:
    muster.local("--env", "API_KEY=verysecret", "--", "true", nodes=1)
    run = muster.run_dir()
    readable = [path for path in run.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    token = (run / "token").read_text()
    assert (run / "token").stat().st_mode & 0o777 == 0o600
    for path in readable:
        assert "verysecret" not in path.read_text(errors="replace"), path
        assert token not in path.read_text(errors="replace"), path


def test_the_python_api_runs_the_same_jobs(muster: MusterCommand) -> None:
    program = """
import muster
spec = muster.JobSpec(backend="local", nodes=2, ray=False, command=["bash", "-c", "exit 5"])
result = muster.run(spec)
handle = muster.submit(muster.JobSpec(backend="local", ray=False, command=["true"]))
print(result.exit_code, result.state, handle.wait().exit_code)
"""
    done = subprocess.run([muster.python, "-c", program], cwd=muster.cwd, capture_output=True, text=True)
    assert done.stdout == "5 failed 0\n", done.stderr


# Its supervisor is a child of the agent; those of earlier cycles have ended, and must have been reaped.
ZOMBIES_OF_THE_AGENT = """
import os, sys, time
def stat(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]
if int(os.environ["MUSTER_CYCLE"]) < 2:
    sys.exit(3)
agent, deadline = stat(os.getppid())[1], time.monotonic() + 20
while True:
    zombies = [pid for pid in os.listdir("/proc") if pid.isdigit() and stat(pid)[:2] == ["Z", agent]]
    if not zombies or time.monotonic() > deadline:
        break
    time.sleep(0.05)
print("agent", open(f"/proc/{agent}/cmdline").read().split("\\0")[3][-9:], "zombies", len(zombies))
"""


def test_after_several_cycles_the_agent_has_no_zombie_children(muster: MusterCommand) -> None:
    options = ("--restart-on-driver-failure", "--max-restarts", "2", "--no-progress-limit", "9")
    done = muster.local(*options, "--", "python", "-c", ZOMBIES_OF_THE_AGENT, nodes=1)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "agent agent.pyz zombies 0"), done.stdout


@pytest.mark.parametrize("umask", [0o000, 0o027])
def test_a_run_directory_is_private_and_the_driver_keeps_the_user_s_umask(muster: MusterCommand, umask: int) -> None:
    show = 'umask; touch "$MUSTER_OUTPUT_DIR/result"'
    started = muster.start(*muster.local_args("--setup", "umask", "--", "sh", "-c", show, nodes=2), umask=umask)
    out, err = started.communicate(timeout=DEADLINE_S)
    assert (started.returncode, out) == (0, f"{umask:04o}\n"), err
    run = muster.run_dir()
    assert f"{umask:04o}\n" in (run / "attempt-0" / "logs" / "node-0001.log").read_text()
    result = run / "output" / "result"
    assert stat.S_IMODE(result.stat().st_mode) == 0o666 & ~umask
    wrong = {path: oct(path.stat().st_mode) for path in (run, *run.rglob("*")) if path.stat().st_mode & 0o077}
    assert wrong.keys() <= {result}, wrong
    assert {path for path in run.rglob("*") if path.stat().st_mode & 0o100 and path.is_file()} == {run / "job.sh"}
