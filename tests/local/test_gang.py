"""Gang processes on this machine get their environment; one failure ends all of them, and the run restarts or ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.running import MusterCommand, wait_for

REPOSITORY = Path(__file__).parents[2]
RANK_LOG = "attempt-0/logs/cycle-{cycle}/rank-{rank:04d}.log"
DUMP = "import json, os; e = os.environ; json.dump(dict(e), open(e['MUSTER_OUTPUT_DIR'] + '/' + e['RANK'], 'w'))"
# Rank 3 crashes in the first cycle, rank 1 hangs in the second, all is well in the third; each once all have begun.
CRASH_HANG_SUCCEED = (
    'echo "cycle $MUSTER_CYCLE rank $RANK of $WORLD_SIZE restarts $TORCHELASTIC_RESTART_COUNT";'
    " cd $MUSTER_OUTPUT_DIR; touch $MUSTER_CYCLE.$RANK;"
    " until [ $(ls | grep -c ^$MUSTER_CYCLE) = 4 ]; do touch $MUSTER_BEAT_FILE; sleep 0.1; done;"
    ' case "$MUSTER_CYCLE $RANK" in "0 3") exit 7;; "1 1") sleep 1000;; "2 "*) exit 0;; esac;'
    " while :; do touch $MUSTER_BEAT_FILE; sleep 0.2; done"
)


def gang(muster: MusterCommand, *args: str, nodes: int = 2, procs: int = 2, **more: Any) -> Any:
    return muster.local("--procs-per-node", str(procs), *args, nodes=nodes, **more)


def start(muster: MusterCommand, *args: str, nodes: int = 2, procs: int = 2) -> subprocess.Popen[str]:
    return muster.start(*muster.local_args("--procs-per-node", str(procs), *args, nodes=nodes))


def rank_log(muster: MusterCommand, rank: int, cycle: int = 0) -> str:
    """The output of a rank in a cycle; that of rank 0 is a part of the driver's log."""
    if rank == 0:
        lines = muster("logs", "--rank", "0", "--cycle", str(cycle)).stdout.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("muster: cycle "))
    return (muster.run_dir() / RANK_LOG.format(cycle=cycle, rank=rank)).read_text()


def wait_for_ranks(muster: MusterCommand, text: str, ranks: int = 4, cycle: int = 0) -> None:
    """Until every one of them has written this."""

    def look() -> bool:
        if not list(muster.cwd.glob("muster-runs/*/attempt-0/logs")):
            return False
        paths = muster.run_dir().glob(f"attempt-0/logs/cycle-{cycle}/rank-*.log")
        logs = [rank_log(muster, 0, cycle), *(path.read_text() for path in paths)]
        return sum(text in log for log in logs) == ranks

    wait_for(f"{text!r} of {ranks} ranks", look)


# -- what a process finds -------------------------------------------------------------------------------------------


def test_every_process_finds_its_rank_and_where_to_meet(muster: MusterCommand) -> None:
    done = gang(muster, "--env", "GIVEN=yes", "--cpus-per-node", "6", "--", "python", "-c", DUMP)
    assert done.returncode == 0, done.stderr
    output = muster.run_dir() / "output"
    found = [json.loads((output / str(rank)).read_text()) for rank in range(4)]
    for rank, env in enumerate(found):
        assert (env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"]) == (str(rank), str(rank % 2), str(rank // 2))
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) == ("4", "2", "2")
        assert env["TORCHELASTIC_RUN_ID"] == env["MUSTER_RUN_ID"] == muster.run_dir().name
        assert (env["GIVEN"], env["OMP_NUM_THREADS"], env["MASTER_ADDR"]) == ("yes", "3", "127.0.0.1")
        assert "RAY_ADDRESS" not in env and "MUSTER_RESTART_REASON" not in env
    assert len({env["MASTER_PORT"] for env in found}) == 1
    beats = {env["MUSTER_BEAT_FILE"] for env in found}
    assert len(beats) == 4 and not [
        beat for beat in beats if beat.startswith(str(muster.cwd))
    ]  # not on the shared disk


def test_spares_have_no_process(muster: MusterCommand) -> None:
    done = gang(muster, "--spares", "1", "--", "bash", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert (done.returncode, done.stdout) == (0, "rank 0 of 4\n"), done.stderr
    logs = muster.run_dir() / "attempt-0/logs/cycle-0"  # rank 0 writes to the driver's log
    assert sorted(log.name for log in logs.iterdir()) == [f"rank-{rank:04d}.log" for rank in (1, 2, 3)]


@pytest.mark.ray
def test_beside_ray_every_process_finds_the_cluster(muster: MusterCommand) -> None:
    program = "import os, ray; ray.init(log_to_driver=False); print(os.environ['RANK'], len(ray.nodes()))"
    options = ("--cpus-per-node", "1", "--", "python", "-c", program)
    done = gang(muster, *options, procs=1, ray=True)
    assert done.returncode == 0, done.stderr
    assert [rank_log(muster, rank).splitlines()[-1] for rank in range(2)] == ["0 2", "1 2"]


# -- logs -----------------------------------------------------------------------------------------------------------


def test_every_rank_has_a_log_and_rank_0_s_is_the_driver_s(muster: MusterCommand) -> None:
    done = gang(muster, "--", "bash", "-c", "for i in $(seq 5000); do echo $RANK:$i; done; echo error $RANK >&2")
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        lines = [f"{rank}:{i}" for i in range(1, 5001)]
        assert rank_log(muster, rank).splitlines() == [*lines, f"error {rank}"]
    assert done.stdout == rank_log(muster, 0) == (muster.run_dir() / "attempt-0/logs/driver.log").read_text()
    shown = muster("logs", "--rank", "3")
    assert shown.stdout == rank_log(muster, 3)
    missing = muster("logs", "--rank", "4")
    assert missing.returncode == 1 and "has no log of rank 4" in missing.stderr


# -- one that fails -------------------------------------------------------------------------------------------------


def test_one_crash_ends_all_with_its_code_and_name(muster: MusterCommand) -> None:
    crash = 'echo "here is $RANK"; [ $RANK != 3 ] || { echo out of luck; exit 7; }; sleep 1000'
    done = gang(muster, "--", "bash", "-c", crash)
    assert done.returncode == 7
    assert "the driver failed: rank 3 on node-1 exited with 7" in done.stderr
    error = muster.status()["error"]
    assert (error["host"], error["log_tail"][-1]) == ("node-1", "out of luck")


def test_a_process_that_a_signal_ends_is_named_by_it(muster: MusterCommand) -> None:
    done = gang(muster, "--", "bash", "-c", "[ $RANK != 2 ] || kill -9 $$; sleep 1000")
    assert done.returncode == 137
    assert "rank 2 on node-1 was ended by SIGKILL" in done.stderr


def test_processes_that_end_well_early_wait_for_nobody_and_end_nobody(muster: MusterCommand) -> None:
    wait = "[ $RANK != 0 ] || until [ -e $MUSTER_OUTPUT_DIR/3 ]; do sleep 0.05; done; touch $MUSTER_OUTPUT_DIR/$RANK"
    done = gang(muster, "--", "bash", "-c", wait)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(muster.run_dir() / "output")) == ["0", "1", "2", "3"]


def test_a_command_that_is_not_there_is_told_by_rank(muster: MusterCommand) -> None:
    done = gang(muster, "--", "no-such-program")
    assert done.returncode == 127
    assert "could not be started" in done.stderr and "no-such-program" in done.stderr


def test_what_a_process_leaves_behind_is_ended(muster: MusterCommand) -> None:
    done = gang(muster, "--", "bash", "-c", "setsid sleep 1000 & echo begun")
    assert (done.returncode, done.stdout) == (0, "begun\n"), done.stderr  # and the fixture finds nothing left


def test_processes_whose_supervisor_is_killed_are_ended_all_the_same(muster: MusterCommand) -> None:
    process = start(muster, "--", "bash", "-c", "echo supervisor $PPID; sleep 1000")
    wait_for_ranks(muster, "supervisor")
    os.kill(int(rank_log(muster, 2).split()[1]), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "on node-1 was lost" in err


# -- hangs ----------------------------------------------------------------------------------------------------------

HANG = """
import os, time
def deep_in_thought():
    time.sleep(3600)
def at_work():
    while True:
        print("working", flush=True)
        time.sleep(0.2)
deep_in_thought() if os.environ["RANK"] == "2" else at_work()
"""


def test_a_rank_that_hangs_is_named_and_where_it_was_is_kept(muster: MusterCommand) -> None:
    (muster.cwd / "hang.py").write_text(HANG)
    done = gang(muster, "--stall-timeout", "3s", "--", "python", "hang.py")
    assert done.returncode == 1
    assert "rank 2 on node-1 hung: no output and no muster.beat() for 3 s" in done.stderr
    logs = muster.run_dir() / "attempt-0" / "logs"
    assert "deep_in_thought" in (logs / "stacks-0001.txt").read_text() + rank_log(muster, 2)
    assert (logs / "stacks-0000.txt").exists()


def test_ranks_that_beat_are_not_taken_for_hung(muster: MusterCommand) -> None:
    beats = "import muster, time\nfor _ in range(80):\n    muster.beat()\n    time.sleep(0.1)\n"
    done = gang(muster, "--stall-timeout", "6s", "--", muster.python, "-c", beats)
    assert done.returncode == 0, done.stderr


# -- another cycle --------------------------------------------------------------------------------------------------


def test_a_crash_and_a_hang_within_the_budget_end_in_success(muster: MusterCommand) -> None:
    options = ("--restart-on-driver-failure", "--max-restarts", "2", "--stall-timeout", "5s")
    done = gang(muster, *options, "--", "bash", "-c", CRASH_HANG_SUCCEED)
    assert done.returncode == 0, done.stderr
    status = muster.status()
    assert [cycle["reason"] for cycle in status["cycles"]] == [
        "the driver failed: rank 3 on node-1 exited with 7",
        "the driver failed: rank 1 on node-0 hung: no output and no muster.beat() for 5 s; see logs/stacks-*.txt",
        "the driver exited with 0",
    ]
    assert (status["error"], status["state"], status["exit_code"]) == (None, "succeeded", 0)
    for cycle in range(3):
        for rank in range(4):
            told = f"cycle {cycle} rank {rank} of 4 restarts {cycle}"
            assert rank_log(muster, rank, cycle).splitlines()[0] == told
    assert [line for line in done.stdout.splitlines() if line.startswith("cycle")] == [
        f"cycle {cycle} rank 0 of 4 restarts {cycle}" for cycle in range(3)
    ]
    assert muster("logs", "--rank", "3", "--cycle", "0").stdout == "cycle 0 rank 3 of 4 restarts 0\n"
    assert muster("logs", "--rank", "3").stdout == "cycle 2 rank 3 of 4 restarts 2\n"


@pytest.mark.parametrize("fault", ["exit 1", "sleep 1000"], ids=["crash", "hang"])
def test_without_a_budget_a_crash_or_a_hang_ends_the_run_with_1(muster: MusterCommand, fault: str) -> None:
    options = ("--restart-on-driver-failure", "--max-restarts", "0", "--stall-timeout", "2s")
    program = f"[ $RANK != 1 ] || {fault}; while :; do echo beat; sleep 0.2; done"
    done = gang(muster, *options, "--", "bash", "-c", program)
    assert done.returncode == 1
    assert "no restart is allowed (--max-restarts 0)" in done.stderr
    assert len(muster.status()["cycles"]) == 1


def test_a_lost_node_restarts_the_gang_on_those_that_are_left(muster: MusterCommand) -> None:
    wait_once = (
        'echo "cycle $MUSTER_CYCLE port $MASTER_PORT"; [ $MUSTER_CYCLE != 0 ] || sleep 1000;'
        ' echo "$MUSTER_RESTART_REASON"'
    )
    process = start(muster, "--spares", "1", "--on-node-loss", "restart", "--", "bash", "-c", wait_once)
    wait_for_ranks(muster, "cycle 0")
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    status = muster.status()
    assert [(cycle["members"], cycle["spares"]) for cycle in status["cycles"]] == [
        (["node-0", "node-1"], ["node-2"]),
        (["node-0", "node-2"], []),
    ]
    logs = [rank_log(muster, rank, 1).splitlines() for rank in range(4)]
    assert {log[1] for log in logs} == {"the agent of node-1 is gone: its connection ended"}
    assert len({log[0] for log in logs}) == 1
    assert logs[0][0].partition(" port ")[2] not in rank_log(muster, 0, 0)  # another one in each cycle


def test_a_rank_that_fails_because_a_node_is_lost_counts_as_the_loss(muster: MusterCommand) -> None:
    """Processes of other nodes often see the loss before their leader does; a failed driver would be the end here."""
    lose = (
        'echo "cycle $MUSTER_CYCLE"; [ $MUSTER_CYCLE = 0 ] || exit 0;'
        " if [ $RANK = 0 ]; then until [ -e $MUSTER_OUTPUT_DIR/lost ]; do sleep 0.05; done; exit 9; fi; sleep 1000"
    )
    process = start(muster, "--spares", "1", "--on-node-loss", "restart", "--", "bash", "-c", lose)
    wait_for_ranks(muster, "cycle 0")
    agent = muster.agent_pid(1)
    os.kill(agent, signal.SIGSTOP)  # as a host that is cut off: nothing is heard, nothing is closed
    try:
        (muster.run_dir() / "output" / "lost").touch()
        events = muster.run_dir() / "attempt-0" / "events-0.jsonl"
        wait_for("the loss to be seen", lambda: '"lost"' in events.read_text())
    finally:
        os.kill(agent, signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "the agent of node-1 fell silent" in muster.status()["cycles"][0]["reason"]


# -- stopped --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trap", "grace", "code"),
    [("trap 'echo leaving; exit 0' TERM", "60s", 0), ("true", "60s", 143), ("trap '' TERM", "1s", 137)],
    ids=["leaves-with-0", "by-default", "ignores-it"],
)
def test_a_stopped_gang_has_its_grace(muster: MusterCommand, trap: str, grace: str, code: int) -> None:
    program = f"{trap}; echo ready; while :; do sleep 0.1; done"
    process = start(muster, "--stop-grace", grace, "--", "bash", "-c", program)
    wait_for_ranks(muster, "ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == code
    assert muster.status()["state"] == "stopped"
    if code == 0:
        assert [rank_log(muster, rank).splitlines()[-1] for rank in range(4)] == ["leaving"] * 4


def test_a_signal_of_slurm_s_reaches_every_process(muster: MusterCommand) -> None:
    program = "trap 'echo checkpoint; exit 0' USR2; echo ready; while :; do sleep 0.1; done"
    process = start(muster, "--", "bash", "-c", program)
    wait_for_ranks(muster, "ready")
    os.kill(muster.agent_pid(0), signal.SIGUSR2)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert [rank_log(muster, rank).splitlines()[-1] for rank in range(4)] == ["checkpoint"] * 4


def test_an_idle_cluster_has_no_gang(muster: MusterCommand) -> None:
    args = muster.local_args("--procs-per-node", "2", nodes=1)
    up = muster("up", *args[1:])
    assert up.returncode == 0, up.stderr
    assert muster("down").returncode == 0
    assert not (muster.run_dir() / "attempt-0/logs/cycle-0").exists()


# -- torch ----------------------------------------------------------------------------------------------------------


def test_torch_adds_up_over_all_processes(muster: MusterCommand) -> None:
    pytest.importorskip("torch", reason="torch is not installed: no torch.distributed to try")
    done = gang(muster, "--", "python", str(REPOSITORY / "examples" / "gang_allreduce.py"), "--steps", "5")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.endswith((" 0", " steps"))]  # torch may warn of numpy
    assert said == ["4 ranks, cycle 0, from step 0", "total 50 after 5 steps"]


def test_a_gang_and_its_next_cycle_start_under_agents_with_more_than_a_thousand_descriptors(
    muster: MusterCommand,
) -> None:
    """As on a leader of a thousand nodes: every later descriptor has a number that `select` does not take."""
    held = "ulimit -n 4096; for ((i = 0; i < 1100; i++)); do exec {held}</dev/null; done"
    fails_once = "echo cycle $MUSTER_CYCLE rank $RANK; [ $MUSTER_CYCLE = 1 ] || [ $RANK != 1 ]"
    options = ("--setup", held, "--restart-on-driver-failure", "--max-restarts", "1")
    done = gang(muster, *options, "--", "bash", "-c", fails_once, procs=1)
    assert done.returncode == 0, done.stderr
    assert rank_log(muster, 1, cycle=1) == "cycle 1 rank 1\n"
