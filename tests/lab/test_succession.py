"""A job on a real Slurm survives three kinds of leader loss under another leader, and the allocation is released."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.lab.conftest import SET_UP_UNTIL_LOST, SlurmCommand, agent_on
from tests.lab.figures import report
from tests.running import DEADLINE_S, wait_for

LAB = {"nodes": 4}
DRIVER = """
import os, time
cycle, log = os.environ["MUSTER_CYCLE"], os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "lives")
end, announced = time.monotonic() + (600 if cycle == "0" else 3), False
while time.monotonic() < end:
    with open(log, "a") as file:
        file.write(f"{cycle} {time.time()}\\n")
    if not announced:  # only now may the test kill it: its first line is in the file
        print("cycle", cycle, flush=True)
        announced = True
    time.sleep(0.1)
"""


RAY_DRIVER = """
import os, sys, time, ray
ray.init(log_to_driver=False)
cycle = os.environ["MUSTER_CYCLE"]
for _ in range(6000 if cycle == "0" else int(sys.argv[1])):  # it waits to be lost in the first cycle
    print("cycle", cycle, sorted(node["Labels"]["muster.io/host"] for node in ray.nodes() if node["Alive"]), flush=True)
    time.sleep(0.1)
"""


def kill_agent(slurm: SlurmCommand, node: str) -> None:
    os.kill(agent_on(slurm, node), signal.SIGKILL)


def stop_agent(slurm: SlurmCommand, node: str) -> None:
    os.kill(agent_on(slurm, node), signal.SIGSTOP)


def kill_host(slurm: SlurmCommand, node: str) -> None:
    slurm.lab.kill_node(node)


def cut_off(slurm: SlurmCommand, node: str) -> None:
    slurm.lab.partition(node)


def start(slurm: SlurmCommand, *options: str) -> tuple[subprocess.Popen[str], str]:
    """A run of 3+1 nodes whose driver waits; and its leader's node."""
    (slurm.cwd / "driver.py").write_text(DRIVER)
    asked = ("--spares", "1", "--on-node-loss", "restart", *options, "--", "python", "driver.py")
    process = slurm.start(*slurm.run_args(*asked, nodes=3))
    slurm.wait_for_driver("cycle 0")
    wait_for("the status to tell", lambda: slurm.status()["state"] == "running")
    return process, slurm.hosts()[0]


@contextmanager
def healed(slurm: SlurmCommand, node: str) -> Iterator[None]:
    try:
        yield
    finally:
        slurm.lab.heal(node)


def freed(slurm: SlurmCommand, job_id: str, dead: str | None) -> float:
    """Seconds that Slurm's job held nodes, from now or from when the dead host was marked down."""
    if dead is not None:
        ask = ("sinfo", "-hN", "-n", dead, "-o", "%T")
        wait_for(f"{dead} to be marked down", lambda: "down" in slurm.slurm(*ask).stdout)
    since = time.monotonic()
    slurm.ended_job(job_id)
    return time.monotonic() - since


@pytest.mark.parametrize(
    "lose",
    [kill_agent, kill_host, *(pytest.param(lose, marks=pytest.mark.slow) for lose in (cut_off, stop_agent))],
    ids=lambda lose: lose.__name__,
)
def test_the_job_goes_on_under_another_leader(slurm: SlurmCommand, lose: Callable[[SlurmCommand, str], None]) -> None:
    process, leader = start(slurm)
    with healed(slurm, leader):
        began = time.time()
        lose(slurm, leader)
        _, err = process.communicate(timeout=150)
        assert process.returncode == 0, err
        status = slurm.status()
        took = freed(slurm, status["job_id"], leader if lose in (kill_host, cut_off) else None)
        report(f"the leader: {lose.__name__}", mended=status["timings"]["driver_start"] - began, freed=took)
        assert (status["term"], status["cycle"], status["state"]) == (1, 1, "succeeded")
        first, second = status["cycles"]
        assert leader in first["members"] and len(second["members"]) == 3 and leader not in second["members"]
        assert_no_overlap(slurm)


def test_a_leader_whose_host_dies_during_its_setup_is_stood_in_for(slurm: SlurmCommand) -> None:
    """The launcher dies with it, and tells nothing. What is left of the set-up lets `muster run` see the silence."""
    setup = f"{SET_UP_UNTIL_LOST}; sleep 8"
    process = slurm.start(*slurm.run_args("--spares", "1", "--setup", setup, "--", "hostname", nodes=3))
    slurm.wait_for_set_up(nodes=4)
    leader = slurm.hosts()[0]
    with healed(slurm, leader):
        began = time.time()
        kill_host(slurm, leader)
        (slurm.cwd / "lost").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        status = slurm.status()
        report("the leader's host dies during --setup", mended=status["timings"]["driver_start"] - began)
        assert (status["term"], status["lead"], out) == (0, 1, slurm.hosts()[1] + "\n")
        assert f"{leader}, the first leader, has sent no heartbeat" in err
        freed(slurm, status["job_id"], leader)


@pytest.mark.ray
@pytest.mark.parametrize(
    ("lose", "nodes"),
    [pytest.param(cut_off, 2, marks=pytest.mark.slow), (stop_agent, 1)],
    ids=["cut_off", "stop_agent"],
)
def test_a_ray_job_goes_on_under_another_leader_when_its_leader_falls_silent(
    slurm: SlurmCommand, lose: Callable[[SlurmCommand, str], None], nodes: int
) -> None:
    """The members' leases end too, and with them their Ray: what is left of it must not end their agents."""
    (slurm.cwd / "nodes.py").write_text(RAY_DRIVER)
    options = ("--spares", "2", "--on-node-loss", "restart", "--", "python", "nodes.py", "15")
    process = slurm.start("run", "-N", str(nodes), *options)
    slurm.wait_for_driver("cycle 0 [")
    hosts, log = slurm.hosts(), slurm.run_dir() / "attempt-0" / "logs" / "driver.log"
    with healed(slurm, hosts[0]):
        agent = agent_on(slurm, hosts[0])
        lose(slurm, hosts[0])
        wait_for("the driver of cycle 1", lambda: "cycle 1 [" in log.read_text(), deadline=240)
        with suppress(ProcessLookupError):  # killed while it is stopped, it could not remove Ray's directory
            os.kill(agent, signal.SIGCONT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert f"cycle 1 {hosts[1 : nodes + 1]}" in out
        status = slurm.status()
        assert (status["term"], status["cycle"], status["state"]) == (1, 1, "succeeded")
        for rank in range(1, len(hosts)):
            assert "the run has ended with 0" in log.with_name(f"node-{rank:04d}.log").read_text()
        slurm.ended_job(status["job_id"])


@pytest.mark.parametrize("lose", [kill_agent, kill_host], ids=lambda lose: lose.__name__)
def test_without_a_budget_the_job_ends_by_name_and_frees_its_nodes(
    slurm: SlurmCommand, lose: Callable[[SlurmCommand, str], None]
) -> None:
    process, leader = start(slurm, "--max-restarts", "0")
    with healed(slurm, leader):
        lose(slurm, leader)
        _, err = process.communicate(timeout=150)
        assert process.returncode == 125 and re.search(f"the leader ({leader} )?is gone", err)
        freed(slurm, slurm.status()["job_id"], leader if lose is kill_host else None)


def test_where_the_nodes_cannot_cancel_the_job_whoever_follows_it_does(slurm: SlurmCommand) -> None:
    """As in a container that has no Slurm."""
    blind = slurm.cwd / "blind"
    blind.mkdir()
    (blind / "scancel").write_text("#!/bin/sh\nexit 1\n")
    (blind / "scancel").chmod(0o755)
    process, leader = start(slurm, "--setup", f"PATH={blind}:$PATH")
    with healed(slurm, leader):
        kill_host(slurm, leader)
        _, err = process.communicate(timeout=150)
        assert process.returncode == 0, err
        freed(slurm, slurm.status()["job_id"], leader)


def test_a_leader_that_was_stopped_and_goes_on_later_disturbs_nobody(slurm: SlurmCommand) -> None:
    """It has been fenced: what it still says belongs to another term."""
    process, leader = start(slurm)
    stopped = agent_on(slurm, leader)
    os.kill(stopped, signal.SIGSTOP)
    slurm.wait_for_driver("cycle 1")
    os.kill(stopped, signal.SIGCONT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert (slurm.status()["term"], slurm.status()["state"]) == (1, "succeeded")
    assert_no_overlap(slurm)


def assert_no_overlap(slurm: SlurmCommand) -> None:
    """No driver wrote after a later one had begun to."""
    seen: dict[str, list[float]] = {}
    for line in (slurm.run_dir() / "output" / "lives").read_text().splitlines():
        cycle, when = line.split()
        seen.setdefault(cycle, []).append(float(when))
    assert list(seen) == ["0", "1"] and max(seen["0"]) < min(seen["1"])
