"""The sandboxes of a cluster on a real Slurm share requests evenly by a gateway per node and survive a lost node."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

LAB = {"nodes": 4}
EXECUTIONS = 10_000
SANDBOX = {"kind": "sandbox", "settings": {"workers_min": 2, "workers_max": 4, "preload": []}}
# A process on every node, each with its share, through its own node's endpoint. It notes who ran how many. Then all of
# them leave something in one session, and wait until they see it there from everybody.
SHARE = """
import asyncio, collections, json, os, sys
from muster.sandbox import AsyncClient
rank, ranks, all_of_them = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
async def main():
    todo, ran, wrong = list(range(rank, all_of_them, ranks)), collections.Counter(), []
    async with AsyncClient() as box:
        async def work():
            while todo:
                number = todo.pop()
                result = await box.execute(f"print({number} * 7)", timeout=60)
                if result.stdout != f"{number * 7}\\n":
                    wrong.append(str(result))
                ran[result.node] += 1
        await asyncio.gather(*(work() for _ in range(4)))
        await box.execute(f"at_{rank} = True", session="shared")
        seen = "len([n for n in dir() if n.startswith('at_')])"
        while (await box.execute(seen, session="shared")).stdout != f"{ranks}\\n":
            await asyncio.sleep(0.1)
    with open(f"ran-{rank}.json", "w") as file:
        json.dump({"ran": ran, "wrong": wrong}, file)
asyncio.run(main())
"""
# On the leader alone: programs without end, until it has been told that there was enough. Each call's end is noted.
STREAM = """
import asyncio, json, os, time
from muster.sandbox import AsyncClient, SandboxLost
calls = []
async def main():
    async with AsyncClient() as box:
        async def work():
            while not os.path.exists("enough"):
                began = time.time()
                try:
                    result = await box.execute("import time; time.sleep(0.05); print(1)", timeout=60)
                    calls.append([began, time.time(), result.node, result.stdout])
                except SandboxLost as error:
                    calls.append([began, time.time(), None, str(error)])
                if len(calls) == 100:
                    print("under way", flush=True)
        await asyncio.gather(*(work() for _ in range(8)))
asyncio.run(main())
with open("calls.json", "w") as file:
    json.dump(calls, file)
"""


def write_job(slurm: SlurmCommand, program: str, **fields: Any) -> None:
    (slurm.cwd / "program.py").write_text(program)
    job = {"ray": False, "python": slurm.python, "services": {"sandbox": SANDBOX}, **fields}
    (slurm.cwd / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))


def hosts_of_calls(calls: list[list[Any]], after: float) -> set[str]:
    return {node for began, _, node, _ in calls if began > after and node is not None}


@pytest.mark.slow
def test_ten_thousand_programs_through_every_node_s_endpoint_are_spread_evenly(slurm: SlurmCommand) -> None:
    command = ["python", "program.py", str(EXECUTIONS)]
    write_job(slurm, SHARE, nodes=4, procs_per_node=1, command=command)
    done = slurm("run", "--file", "job.yaml", timeout=400)
    assert done.returncode == 0, done.stderr
    shares = [json.loads(path.read_text()) for path in Path(slurm.cwd).glob("ran-*.json")]
    assert [share["wrong"] for share in shares] == [[]] * 4
    ran = sum((Counter(share["ran"]) for share in shares), Counter())
    assert sorted(ran) == sorted(slurm.hosts()) and sum(ran.values()) == EXECUTIONS
    assert all(abs(count - EXECUTIONS / 4) <= 0.2 * EXECUTIONS / 4 for count in ran.values()), ran


def test_a_killed_node_costs_the_programs_that_it_ran_and_its_spare_takes_over(slurm: SlurmCommand) -> None:
    write_job(slurm, STREAM, nodes=3, spares=1, on_node_loss="replace", command=["python", "program.py"])
    process = slurm.start("run", "--file", "job.yaml")
    run = slurm.wait_for_driver("under way")
    *_, victim, spare = slurm.hosts()
    slurm.lab.kill_node(victim)
    try:
        record = run / "attempt-0" / "services" / "sandbox.json"
        wait_for("the spare's sandbox", lambda: spare in ready_on(record))
        executed = wait_for("work on the spare", lambda: load_of(slurm, spare).get("executed"))
        (slurm.cwd / "enough").touch()
        _, err = process.communicate(timeout=120)
    finally:
        slurm.lab.heal(victim)
    assert process.returncode == 0 and executed, err
    calls = json.loads((slurm.cwd / "calls.json").read_text())
    lost = [(began, ended, why) for began, ended, node, why in calls if node is None]
    assert len(lost) <= 8, lost  # no more than were in flight, over all nodes
    address = slurm.lab.plan.address(victim)
    assert all(address in why and "may or may not have run" in why for _, _, why in lost), lost
    last = max(ended for _, ended, _ in lost) if lost else 0.0
    assert spare in hosts_of_calls(calls, last)
    assert all(out == "1\n" for _, _, node, out in calls if node is not None)


def ready_on(record: Path) -> list[str]:
    return [one["host"] for one in json.loads(record.read_text())["instances"] if one["state"] == "ready"]


def load_of(slurm: SlurmCommand, host: str) -> dict[str, Any]:
    instances = slurm.status()["services"]["sandbox"]["instances"]
    found: dict[str, Any] = next((one.get("load", {}) for one in instances if one["host"] == host), {})
    return found
