"""Programs request restarts, an end without restarts, and the exclusion of their node: of a driver and of a gang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.running import MusterCommand

AGAIN = ("--on-node-loss", "restart", "--restart-on-driver-failure", "--max-restarts", "2")
# Every program says in which cycle and on which node it runs; `first` is true in the first cycle.
HEADER = """
import muster, os, sys, time
first = os.environ["MUSTER_CYCLE"] == "0"
rank = os.environ.get("RANK")
print("cycle", os.environ["MUSTER_CYCLE"], "rank", rank, flush=True)
"""
WAIT = "time.sleep(1000)"


def program(muster: MusterCommand, text: str) -> tuple[str, str]:
    """Write a program and return the command."""
    path = Path(muster.cwd) / "program.py"
    path.write_text(HEADER + text)
    return muster.python, str(path)


def events(muster: MusterCommand, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (muster.run_dir() / "attempt-0/events-0.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == name]


# -- a gang ---------------------------------------------------------------------------------------------------------

EXCLUDE = "if first and rank == '1': assert muster.exclude_node('bad memory', when={when!r}, timeout=100)\n"
GANG = ("--procs-per-node", "1", "--spares", "1", *AGAIN)


@pytest.mark.parametrize(
    ("when", "after"),
    [("now", f"if first: {WAIT}"), ("next_restart", "if first and rank == '1': sys.exit(3)")],
    ids=["now", "next-restart"],
)
def test_a_rank_excludes_its_node_and_the_gang_goes_on_without_it(muster: MusterCommand, when: str, after: str) -> None:
    done = muster.local(*GANG, "--", *program(muster, EXCLUDE.format(when=when) + after), nodes=2)
    assert done.returncode == 0, done.stderr
    status = muster.status()
    assert [cycle["members"] for cycle in status["cycles"]] == [["node-0", "node-1"], ["node-0", "node-2"]]
    assert [node["host"] for node in status["nodes"] if node["role"] == "excluded"] == ["node-1"]
    (request,) = status["requests"]
    assert (request["host"], request["process_rank"], request["kind"]) == ("node-1", 1, "exclude_node")
    assert (request["reason"], request["at_once"]) == ("bad memory", when == "now")
    (evidence,) = [one for one in events(muster, "bad_node") if one["kind"] == "program"]
    assert (evidence["host"], evidence["bad"]) == ("node-1", True)
    shown = muster("status").stdout, muster("report", "--text").stdout
    assert "rank 1 on node-1 requested exclude_node" in shown[0] and "node-1 exclude_node: bad memory" in shown[1]


def test_the_leader_s_node_hands_over_when_a_rank_excludes_it(muster: MusterCommand) -> None:
    text = f"if first and rank == '0': assert muster.exclude_node('bad memory', timeout=100)\nif first: {WAIT}"
    done = muster.local(*GANG, "--", *program(muster, text), nodes=2)
    assert done.returncode == 0, done.stderr
    status = muster.status()
    assert (status["lead"] != 0, status["term"]) == (True, 1)
    assert status["cycles"][-1]["members"] == ["node-1", "node-2"]


def test_an_exit_code_excludes_the_node_of_its_rank(muster: MusterCommand) -> None:
    command = ("bash", "-c", '[ "$MUSTER_CYCLE $RANK" != "0 1" ] || exit 117')
    done = muster.local(*GANG, "--control-exit-codes", "--", *command, nodes=2)
    assert done.returncode == 0, done.stderr
    assert muster.status()["cycles"][-1]["members"] == ["node-0", "node-2"]
    assert [one["kind"] for one in muster.status()["requests"]] == ["exclude_node"]


# -- a driver -------------------------------------------------------------------------------------------------------


def test_a_driver_requests_a_restart(muster: MusterCommand) -> None:
    text = f"if first: muster.request_restart('the loss is NaN', timeout=100); {WAIT}"
    done = muster.local("--max-restarts", "1", "--", *program(muster, text), nodes=1)
    assert done.returncode == 0, done.stderr
    assert "muster: cycle 1: a program has requested a restart: the loss is NaN" in done.stdout
    assert len(muster.status()["cycles"]) == 2


def test_without_restarts_left_a_requested_restart_fails_the_run_with_its_reason(muster: MusterCommand) -> None:
    text = f"muster.request_restart('the loss is NaN', timeout=100); {WAIT}"
    done = muster.local("--max-restarts", "0", "--", *program(muster, text), nodes=1)
    assert done.returncode == 115, done.stderr
    assert "a program has requested a restart: the loss is NaN; no restart is allowed" in muster.status()["end_reason"]


def test_after_a_ban_a_failed_driver_is_not_restarted(muster: MusterCommand) -> None:
    text = "assert muster.no_restart('the data are wrong', timeout=100)\nsys.exit(7)"
    done = muster.local(*AGAIN, "--", *program(muster, text), nodes=1)
    assert done.returncode == 7, done.stderr
    status = muster.status()
    assert len(status["cycles"]) == 1
    assert status["end_reason"] == "the driver exited with 7; no restart: the data are wrong"
    assert json.loads((muster.run_dir() / "attempt-0/no-restart.json").read_text()) == {"reason": "the data are wrong"}


@pytest.mark.parametrize(("options", "cycles"), [(("--control-exit-codes",), 1), ((), 3)], ids=["on", "off"])
def test_an_exit_code_forbids_restarts_only_with_the_option(
    muster: MusterCommand, options: tuple[str, ...], cycles: int
) -> None:
    done = muster.local(*AGAIN, *options, "--", "bash", "-c", "exit 116", nodes=1)
    assert done.returncode == 116, done.stderr
    assert len(muster.status()["cycles"]) == cycles


# -- Ray ------------------------------------------------------------------------------------------------------------

TASK = """
import ray
ray.init(log_to_driver=False, runtime_env={"env_vars": dict(os.environ)})  # as NeMo-RL copies the driver's variables

@ray.remote(num_cpus=1)
def exclude():
    return muster.exclude_node("bad memory", when="next_restart", timeout=100)

if first:
    node = next(node for node in ray.nodes() if node["Labels"]["muster.io/node"] == "1")
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    assert ray.get(exclude.options(scheduling_strategy=there).remote())
    sys.exit(3)
"""


@pytest.mark.ray
def test_a_ray_task_excludes_the_node_on_which_it_runs(muster: MusterCommand) -> None:
    command = program(muster, TASK)
    done = muster.local("--spares", "1", "--cpus-per-node", "1", *AGAIN, "--", *command, nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    assert muster.status()["cycles"][-1]["members"] == ["node-0", "node-2"]


def test_a_program_in_another_language_writes_a_request_as_documented(muster: MusterCommand) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/control-requests.md").read_text()
    create = '(umask 077; mkdir -p "$MUSTER_CONTROL_DIR")'
    assert f"`{create}`" in page
    script = f"""
        {create}
        request=$MUSTER_CONTROL_DIR/1-ab.json
        echo '{{"kind": "no_restart", "reason": "bad data"}}' >"$request.tmp"
        mv "$request.tmp" "$request"
        while [ -e "$request" ]; do sleep 0.1; done
        exit 3
    """
    done = muster.local(*AGAIN, "--no-ray", "--", "bash", "-c", script, nodes=2)
    assert done.returncode == 3, done.stderr
    (request,) = muster.status()["requests"]
    assert (request["kind"], request["reason"]) == ("no_restart", "bad data")
    assert muster.status()["cycle"] == 0
