"""The job script and its prelude, executed: their effects on a node, and the outcomes that they record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import pytest
from tests.filesystems.faulty_filesystem import faulty_filesystem, why_no_fuse

from muster.launch.job_script import Launcher, PreludeArguments, render
from muster.rundir import RunPaths, read_json

# Starts one prelude, as srun would on one node, and reports its end like srun, which leaves nothing of it behind.
ONE_NODE = """
import contextlib, os, signal, subprocess, sys
task = subprocess.Popen(sys.argv[1:], env={**os.environ, "TASK": "0", "NODE": "n0"}, start_new_session=True)
code = task.wait()
with contextlib.suppress(ProcessLookupError): os.killpg(task.pid, signal.SIGKILL)
if code: print(f"srun: error: n0: task 0: Exited with exit code {code}", file=sys.stderr)
"""

# An agent that prints its arguments, records an outcome and exits.
AGENT = """
import json, os, sys
run = sys.argv[1]
attempt = f"{run}/attempt-" + os.environ["MUSTER_ATTEMPT"]
said = {name: os.environ.get(name) for name in ("MUSTER_RANK", "MUSTER_HOST", "MUSTER_BACKEND", "LOADED")}
json.dump({**said, "argv": sys.argv[1:], "flags": [sys.flags.isolated, sys.flags.no_site]}, open(f"{run}/said", "w"))
open(f"{attempt}/logs/driver.log", "a").write("the driver speaks\\n")
open(f"{attempt}/outcome.tmp", "w").write(json.dumps({"exit_code": 7, "end_reason": "the driver exited with 7"}))
os.rename(f"{attempt}/outcome.tmp", f"{attempt}/outcome")
"""


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    (tmp_path / "r-1").mkdir()
    return RunPaths(str(tmp_path / "r-1"))


def execute(
    run: RunPaths, words: Sequence[str], python: str = sys.executable, setup: str = "", prepare: str = ""
) -> subprocess.CompletedProcess[str]:
    launcher = Launcher("local", words, "TASK", "NODE", prepare)
    text = render(run.root, run.run_id, PreludeArguments(python, setup), launcher, [])
    return subprocess.run(["bash"], input=text, capture_output=True, text=True, timeout=60)


def saying(words: str) -> list[str]:
    """Return a launcher that prints this text and starts nothing."""
    return ["sh", "-c", quote("""printf '%s\\n' "$0" """), quote(words)]


def on_one_node(run: RunPaths, agent: str = AGENT, **options: str) -> subprocess.CompletedProcess[str]:
    Path(run.agent).write_text(agent)
    return execute(run, [quote(sys.executable), "-c", quote(ONE_NODE)], **options)


def test_the_agent_gets_the_run_its_rank_and_its_host_and_the_script_exits_with_its_outcome(run: RunPaths) -> None:
    done = on_one_node(run)
    assert done.returncode == 7
    assert read_json(f"{run.root}/said") == {
        "MUSTER_RANK": "0",
        "MUSTER_HOST": "n0",
        "MUSTER_BACKEND": "local",
        "LOADED": None,
        "argv": [run.root],
        "flags": [1, 1],
    }


def test_the_script_s_output_says_where_the_driver_s_output_is(run: RunPaths) -> None:
    (line,) = on_one_node(run).stdout.splitlines()
    assert line == f"muster: the driver's output is in {run.attempt(0).driver_log} (muster logs -f {run.run_id})"
    assert Path(run.attempt(0).driver_log).read_text() == "the driver speaks\n"


def test_the_agent_is_the_task_process_itself(run: RunPaths) -> None:
    """Slurm signals only the task process: a shell in between would not forward the signal."""
    starter = "import os, sys; open(sys.argv[1] + '/said', 'w').write(f'{os.getpid()} {os.getppid()}')"
    launcher = """
import os, subprocess, sys
task = subprocess.Popen(sys.argv[1:], env={**os.environ, "TASK": "0", "NODE": "n0"})
task.wait(); print("pids", os.getpid(), task.pid)
"""
    Path(run.agent).write_text(starter)
    execute(run, [quote(sys.executable), "-c", quote(launcher)])
    (pids,) = [line for line in Path(run.attempt(0).steps_log).read_text().splitlines() if line.startswith("pids")]
    parent, task = pids.split()[1:]
    assert Path(run.root, "said").read_text() == f"{task} {parent}"


def test_setup_runs_on_the_node_before_the_agent_and_its_output_goes_to_the_node_s_log(run: RunPaths) -> None:
    done = on_one_node(run, setup="export LOADED='a b'\necho \"modules loaded\"")
    assert done.returncode == 7
    assert read_json(f"{run.root}/said")["LOADED"] == "a b"
    assert Path(run.attempt(0).node_log(0)).read_text() == "modules loaded\n"


@pytest.mark.parametrize("setup", ["[ $# = 0 ]", "set -- replaced"])
def test_setup_neither_sees_nor_disturbs_the_prelude_s_arguments(run: RunPaths, setup: str) -> None:
    assert on_one_node(run, setup=setup).returncode == 7


def test_a_leader_candidate_writes_heartbeats_while_its_setup_runs(run: RunPaths) -> None:
    heartbeat = run.attempt(0).startup_heartbeat(0)
    assert on_one_node(run, setup=f'until [ "$(cat {quote(heartbeat)})" = 3 ]; do sleep 0.05; done').returncode == 7


def test_a_setup_that_waits_for_its_children_does_not_wait_for_the_heartbeat(run: RunPaths) -> None:
    assert on_one_node(run, setup="true & wait").returncode == 7


# Kills its one task as soon as that is the only process that the prelude has left; nothing ends the others.
UNTIL_ALONE = """
import os, subprocess, sys, time
task = subprocess.Popen(sys.argv[1:], env={**os.environ, "TASK": "0", "NODE": "n0"}, start_new_session=True)
def group(): return subprocess.run(["pgrep", "-g", str(task.pid)], capture_output=True, text=True).stdout.split()
while not os.path.exists(os.environ["SAID"]) or group() != [str(task.pid)]: time.sleep(0.05)
task.kill()
task.wait()
"""


def test_the_heartbeat_of_the_prelude_ends_when_the_agent_takes_over(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", run.attempt(0).node_record(0))
    Path(run.agent).write_text("import os, time; open(os.environ['SAID'], 'w').close(); time.sleep(1000)")
    execute(run, [quote(sys.executable), "-c", quote(UNTIL_ALONE)])
    assert Path(run.attempt(0).startup_heartbeat(0)).read_text()


def test_the_heartbeat_of_the_prelude_ends_with_its_process(run: RunPaths) -> None:
    """Nothing else ends it here; a process left by a test is an error."""
    launcher = 'import os, subprocess, sys; subprocess.run(sys.argv[1:], env={**os.environ, "TASK": "0", "NODE": "n0"})'
    written = f"[ -s {quote(run.attempt(0).startup_heartbeat(0))} ]"
    execute(
        run, [quote(sys.executable), "-c", quote(launcher)], setup=f"until {written}; do sleep 0.05; done; kill -9 $$"
    )


# -- failures before the start -----------------------------------------------------------------------------------


def test_a_failed_setup_is_reported_with_its_code(run: RunPaths) -> None:
    done = on_one_node(run, setup="false || (exit 3)")
    assert done.returncode == 125
    assert "muster: n0: --setup failed with code 3\n" in Path(run.attempt(0).steps_log).read_text()
    assert "code 122" in Path(run.attempt(0).steps_log).read_text()


def test_a_missing_interpreter_is_reported(run: RunPaths) -> None:
    done = on_one_node(run, python="/no/such/python")
    assert done.returncode == 125
    assert "muster: n0: no Python interpreter at /no/such/python\n" in Path(run.attempt(0).steps_log).read_text()


def test_a_node_that_cannot_see_the_run_directory_reports_it(run: RunPaths) -> None:
    done = on_one_node(run, prepare='rm "$attempt/canary"')
    assert done.returncode == 125
    said = Path(run.attempt(0).steps_log).read_text()
    assert f"muster: n0: cannot see {run.attempt(0).root}: the runs directory must be" in said
    assert not Path(run.root, "said").exists()


def test_an_old_canary_is_not_accepted(run: RunPaths) -> None:
    assert on_one_node(run, prepare='echo "r-0 0" >"$attempt/canary"').returncode == 125
    assert "cannot see" in Path(run.attempt(0).steps_log).read_text()


# -- an outcome in any case -------------------------------------------------------------------------------------


def test_a_missing_launcher_is_recorded_as_the_reason(run: RunPaths) -> None:
    assert execute(run, ["no-such-launcher"]).returncode == 125
    outcome = read_json(run.attempt(0).outcome)
    assert outcome["exit_code"] == 125
    assert "no-such-launcher" in outcome["end_reason"]


@pytest.mark.parametrize(
    "words",
    ['say "hi" \\n', "tab\there", "back\\slash", "percent %d %s", "grün", "$(touch pwned) `touch pwned`", "-n", "'"],
)
def test_the_recorded_outcome_is_valid_for_any_launcher_output(run: RunPaths, words: str) -> None:
    assert execute(run, saying(words)).returncode == 125
    outcome = json.loads(Path(run.attempt(0).outcome).read_text())
    assert outcome["exit_code"] == 125
    assert outcome["end_reason"].startswith("the step ended without an outcome: ")
    assert sorted(os.listdir(run.root)) == ["attempt-0"]


@pytest.mark.parametrize("locale", ["C", "C.utf8"])
def test_output_that_is_not_text_does_not_hide_the_outcome(
    run: RunPaths, locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    assert execute(run, ["sh", "-c", quote(r"printf '\377\376\n'")]).returncode == 125
    assert read_json(run.attempt(0).outcome)["exit_code"] == 125


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (0, "srun: error: Node failure on n3", 0),  # release 22.05
        (1, "srun: error: Node failure on n3", 0),  # 24.11 and 26.05
        (1, "srun: error: Node failure on n3\nsrun: error: n1: task 0: Exited with exit code 1", 125),
        (1, "srun: error: Unable to create step", 125),
        (137, "srun: error: Node failure on n3", 125),
    ],
)
def test_without_an_outcome_the_success_of_all_tasks_but_those_of_lost_nodes_counts(
    run: RunPaths, code: int, words: str, expected: int
) -> None:
    launcher = ["sh", "-c", quote("""printf '%s\\n' "$0"; exit $1"""), quote(words), str(code)]
    lead = """echo '{"rank": 1}' >"$attempt/lead-0.json\""""
    assert execute(run, launcher, prepare=lead).returncode == expected


def signalled(then: str) -> list[str]:
    """Return a launcher during which the script gets SIGTERM and takes note of it; then it ends as this code says."""
    wait = 'until [ -s "$0/attempt-0/stop.json" ]; do sleep 0.05; done'
    return ["sh", "-c", quote(f"kill -TERM $PPID; {wait}; {then}")]


def test_a_step_that_a_signal_ended_before_there_was_a_leader_is_stopped_not_failed(run: RunPaths) -> None:
    """Slurm refuses the step of a job that it is cancelling."""
    ended = "echo srun: error: Slurm job 1 has expired; exit 1"
    assert execute(run, [*signalled(ended), run.root]).returncode == 143
    outcome = read_json(run.attempt(0).outcome)
    assert outcome["state"] == "stopped" and outcome["end_reason"].startswith("the job received SIGTERM; ")


def test_slurm_s_cause_of_the_signal_is_part_of_the_reason(run: RunPaths) -> None:
    ended = 'echo "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"'
    assert execute(run, [*signalled(ended), run.root]).returncode == 143
    assert read_json(run.attempt(0).outcome)["end_reason"].startswith("the job received SIGTERM: time limit; ")


def test_a_leader_that_a_signal_ended_is_stopped_not_failed(run: RunPaths) -> None:
    leads = '{"term": 0, "rank": 0}'
    ended = f"echo '{leads}' >$0/attempt-0/lead-0.json; echo srun: error: n1: task 0: Terminated; exit 143"
    assert execute(run, [*signalled(ended), run.root]).returncode == 143
    assert read_json(run.attempt(0).outcome)["state"] == "stopped"


def test_a_harmless_line_of_the_launcher_is_not_recorded_as_the_reason(run: RunPaths) -> None:
    assert execute(run, saying("srun: cluster configuration lacks support for cpu binding")).returncode == 125
    assert read_json(run.attempt(0).outcome)["end_reason"] == "the step ended without an outcome"


def test_an_outcome_that_the_run_recorded_is_not_replaced(run: RunPaths) -> None:
    recorded = {"exit_code": 0, "end_reason": 'the driver said "exit_code": 9'}
    prepare = f"printf '%s\\n' {quote(json.dumps(recorded))} >\"$attempt/outcome\""
    assert execute(run, ["false"], prepare=prepare).returncode == 0
    assert read_json(run.attempt(0).outcome) == recorded


def test_without_a_run_directory_the_job_exits_with_the_launcher_s_code(run: RunPaths) -> None:
    vanish = ["sh", "-c", quote(f"mv {run.root} {run.root}.gone; exit 6")]
    assert execute(run, vanish).returncode == 6


@pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))
@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("open", r".*/canary"),
        ("create", r".*/node-0000\.log"),
        ("open", r".*/node-0000\.log"),
        ("open", r".*/agent\.pyz"),
    ],
    ids=["the canary", "the node's log", "the node's log again", "the agent"],
)
def test_a_node_starts_although_the_filesystem_fails_at_a_file_that_the_prelude_opens(
    tmp_path: Path, operation: str, path: str
) -> None:
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        run = RunPaths(str(filesystem.path / "r-1"))
        Path(run.root).mkdir()
        filesystem.inject("EIO", operation, path, seconds=1.0, spreads=True)
        done = on_one_node(run, agent=f"print('the agent speaks')\n{AGENT}")
        assert done.returncode == 7, done.stderr  # the code that the agent has recorded
        assert Path(run.attempt(0).node_log(0)).read_text() == "the agent speaks\n"
        assert filesystem.hits()[0] > 0
