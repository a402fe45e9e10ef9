"""Hangs of programs that name their sections: found by given and by learned limits, reported, restarted or failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.running import MusterCommand

HEADER = """
import muster, os, time
first = os.environ["MUSTER_CYCLE"] == "0"
rank = os.environ.get("RANK")
"""
HANG = "time.sleep(1000)"
GANG = ("--procs-per-node", "1")


def program(muster: MusterCommand, text: str) -> tuple[str, str]:
    """Write a program and return the command."""
    path = Path(muster.cwd) / "program.py"
    path.write_text(HEADER + text)
    return muster.python, str(path)


def hangs(muster: MusterCommand) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (muster.run_dir() / "attempt-0/events-0.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == "hang"]


def test_a_rank_that_hangs_in_a_section_is_named_with_stacks_and_fails_the_run(muster: MusterCommand) -> None:
    text = f"""
muster.beat(step=6 if rank == "1" else 7)
with muster.section("load" if rank == "1" else "all-reduce", timeout=1.0):
    {HANG}
"""
    done = muster.local(*GANG, "--on-hang", "fail", "--", *program(muster, text), nodes=2)
    assert done.returncode == 125, done.stderr
    reason = muster.status()["end_reason"]
    assert reason.startswith("the run hangs: rank 1 on node-1 in 'load' for "), reason
    assert "(limit 1.0 s), step 6; see logs/stacks-*.txt" in reason
    (hang,) = hangs(muster)
    lagging = [one for one in hang["processes"] if one["lags"]]
    assert [(one["rank"], one["host"]) for one in lagging] == [(1, "node-1")]
    stacks = (muster.run_dir() / "attempt-0/logs/stacks-0001.txt").read_text()
    assert f"== process {lagging[0]['pid']}: " in stacks
    assert "the run hangs: rank 1" in done.stderr  # the progress of the run


def test_a_driver_that_hangs_in_a_section_is_restarted(muster: MusterCommand) -> None:
    text = f"with muster.section('checkpoint', timeout=1.0):\n    if first: {HANG}"
    done = muster.local("--on-hang", "restart", "--max-restarts", "1", "--", *program(muster, text), nodes=1)
    assert done.returncode == 0, done.stderr
    assert [cycle["reason"].split(":")[0] for cycle in muster.status()["cycles"]] == [
        "the run hangs",
        "the driver exited with 0",
    ]


def test_by_default_a_hang_is_only_reported(muster: MusterCommand) -> None:
    text = """
import glob
with muster.section("checkpoint", timeout=0.5):
    while not glob.glob(os.path.dirname(os.environ["MUSTER_BEAT_FILE"]) + "/logs/stacks-*.txt"):
        time.sleep(0.1)
    time.sleep(2)  # the report follows the stacks
"""
    done = muster.local("--", *program(muster, text), nodes=1)
    assert done.returncode == 0, done.stderr
    assert muster.status()["state"] == "succeeded"
    assert "'checkpoint'" in hangs(muster)[0]["reason"]


def test_the_limit_of_a_step_is_learned_also_from_an_earlier_cycle(muster: MusterCommand) -> None:
    text = f"""
if first:
    for step in range(20):
        muster.beat(step=step)
        time.sleep(0.05)
    muster.beat()
    time.sleep(3)  # the agent has read the times
    os._exit(3)
muster.beat(step=20)
{HANG}
"""
    options = ("--hang-min-time", "2", "--on-hang", "fail", "--restart-on-driver-failure")
    done = muster.local(*options, "--", *program(muster, text), nodes=1)
    assert done.returncode == 125, done.stderr
    assert (
        "in 'step' for" in muster.status()["end_reason"] and "(limit 2.0 s), step 20" in muster.status()["end_reason"]
    )
    assert json.loads((muster.run_dir() / "sections/0000.json").read_text())["step"]


def test_steps_that_vary_by_a_factor_of_three_are_no_hang(muster: MusterCommand) -> None:
    text = """
for step in range(60):
    muster.beat(step=step)
    with muster.section("forward"):
        time.sleep(0.05 * (1 + 2 * (step % 2)))
    time.sleep(0.05 * (1 + 2 * (step % 3 == 0)))
"""
    done = muster.local("--hang-min-time", "5", "--on-hang", "fail", "--", *program(muster, text), nodes=1)
    assert done.returncode == 0, done.stderr
    assert hangs(muster) == []
