"""A job of MIN to MAX nodes on this machine begins with those that have arrived; a late node joins it."""

from __future__ import annotations

import os
import signal

from tests.running import MusterCommand, wait_for

HELD_BACK = 'until [ "$MUSTER_RANK" != 2 ] || [ -e go ]; do sleep 0.1; done'
WAIT_ONCE = 'echo "cycle $MUSTER_CYCLE of $WORLD_SIZE"; [ $MUSTER_CYCLE != 0 ] || sleep 1000'


def begun_on_two_of_three(muster: MusterCommand, *options: str) -> list[str]:
    size = ("-N", "2-3", "--gather-timeout", "5", "--setup", HELD_BACK)
    return ["run", "--backend", "local", "--python", muster.python, "--no-ray", *size, *options]


def state(muster: MusterCommand, node_index: int) -> tuple[str, str, int | None]:
    node = muster.status()["nodes"][node_index]
    return node["state"], node["role"], node["logical_rank"]


def test_a_late_node_gets_the_open_rank_while_the_driver_runs(muster: MusterCommand) -> None:
    wait = "echo begun; until [ -e end ]; do sleep 0.1; done"
    process = muster.start(*begun_on_two_of_three(muster, "--", "bash", "-c", wait))
    muster.wait_for_driver("begun")
    assert muster.status()["cycles"][0]["members"] == ["node-0", "node-1"]
    (muster.cwd / "go").touch()
    wait_for("the late node", lambda: state(muster, 2) == ("ready", "active", 2))
    (muster.cwd / "end").touch()
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (0, "begun\n"), err
    assert "2 of 3 nodes arrived" in err and "node-2 (index 2) has arrived late and gets rank 2" in err
    assert muster.status()["cycles"][0]["members"] == ["node-0", "node-1", "node-2"]


def test_a_gang_has_a_late_node_in_its_next_cycle(muster: MusterCommand) -> None:
    options = ("--procs-per-node", "1", "--on-node-loss", "restart", "--", "bash", "-c", WAIT_ONCE)
    process = muster.start(*begun_on_two_of_three(muster, *options))
    muster.wait_for_driver("cycle 0 of 2")
    (muster.cwd / "go").touch()
    wait_for("the late node", lambda: state(muster, 2) == ("arrived", "spare", None))
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0 and "cycle 1 of 2" in out, err
    assert [cycle["members"] for cycle in muster.status()["cycles"]] == [["node-0", "node-1"], ["node-0", "node-2"]]
