"""Ranks follow the topology that nodes report by Muster's variables; a second agent of a node is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from tests.running import MusterCommand, wait_for

ODD_AND_EVEN = "export MUSTER_DOMAIN=d$((MUSTER_RANK % 2))"
GO_ON = "echo ready; until [ -e $MUSTER_OUTPUT_DIR/go ]; do sleep 0.1; done"
WAIT_ONCE = "echo cycle $MUSTER_CYCLE; [ $MUSTER_CYCLE != 0 ] || sleep 1000"


def test_ranks_follow_the_domains_and_the_status_names_them(muster: MusterCommand) -> None:
    done = muster.local("--setup", ODD_AND_EVEN, "--", "true", nodes=4)
    assert done.returncode == 0, done.stderr
    status = muster.status()
    assert [node["domain"] for node in status["nodes"]] == ["d0", "d1", "d0", "d1"]
    assert [node["logical_rank"] for node in status["nodes"]] == [0, 2, 1, 3]
    assert status["cycles"][0]["members"] == ["node-0", "node-2", "node-1", "node-3"]


def test_whole_segments_of_a_domain_work_and_a_lost_one_moves_to_others(muster: MusterCommand) -> None:
    setup = "export MUSTER_TOPOLOGY=leaf$((MUSTER_RANK / 2)).n$MUSTER_RANK"
    options = ("--setup", setup, "--segment", "2", "--spares", "2", "--on-node-loss", "restart")
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", WAIT_ONCE, nodes=4))
    muster.wait_for_driver("cycle 0")
    os.kill(muster.agent_pid(3), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    cycles = muster.status()["cycles"]
    assert [(cycle["members"], cycle["spares"]) for cycle in cycles] == [
        (["node-0", "node-1", "node-2", "node-3"], ["node-4", "node-5"]),
        (["node-0", "node-1", "node-4", "node-5"], ["node-2"]),
    ]


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("true", "node-0, which leads the run, is in no whole segment of 2 nodes since its domain is not known"),
        ("export MUSTER_DOMAIN=d$((MUSTER_RANK % 3))", "1 whole segment of 2 nodes is left, and the job needs 2"),
    ],
    ids=["nothing-known", "too-few"],
)
def test_segments_that_cannot_be_are_the_end_as_soon_as_that_is_sure(
    muster: MusterCommand, setup: str, why: str
) -> None:
    done = muster.local("--setup", setup, "--segment", "2", "--", "true", nodes=4)
    assert done.returncode == 125
    assert why in done.stderr


def test_nodes_that_are_no_whole_segments_are_refused_before_anything_starts(muster: MusterCommand) -> None:
    done = muster.local("--segment", "4", "--", "true", nodes=6)
    assert done.returncode == 2
    assert "6 nodes are not a multiple of --segment 4" in done.stderr
    assert muster.run_dirs() == []


def test_a_second_agent_of_one_rank_is_refused_by_name_and_the_run_goes_on(muster: MusterCommand) -> None:
    process = muster.start(*muster.local_args("--", "bash", "-c", GO_ON))
    run = muster.wait_for_driver("ready")
    env = {**os.environ, "MUSTER_RANK": "1", "MUSTER_HOST": "twin", "MUSTER_ATTEMPT": "0", "MUSTER_BACKEND": "local"}
    agent = [muster.python, "-I", "-S", str(run / "agent.pyz"), str(run)]
    twin = subprocess.run(agent, env=env, capture_output=True, text=True, timeout=180)
    reason = "twin joined as node 1, but node-1 has joined as that node before"
    assert (twin.returncode, reason in twin.stdout + twin.stderr) == (125, True), twin
    events = run / "attempt-0" / "events-0.jsonl"
    refused = wait_for("the event", lambda: [line for line in events.read_text().splitlines() if "refused" in line])
    assert json.loads(refused[0])["reason"] == reason
    (run / "output" / "go").touch()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
