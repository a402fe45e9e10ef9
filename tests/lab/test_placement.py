"""`muster.placement` survives a killed node on a real Slurm, in an environment that has only Ray."""

from __future__ import annotations

import fcntl
import json
import shlex
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand
from tests.placement import scenarios
from tests.placement.families import FAMILY
from tests.ray_alone import ray_alone
from tests.running import wait_for

pytestmark = pytest.mark.ray

LAB = {"nodes": 3}
# Ray gives a silent node about a minute; here some seconds, which is the same but for the waiting.
NOTICES_SOON = (
    "RAY_health_check_timeout_ms=5000",
    "RAY_health_check_period_ms=1000",
    "RAY_health_check_failure_threshold=2",
)

# A server with a part on each of the two nodes, and one that must not be on the head; both go on when a node is lost.
# Every part is a family that is hard to get rid of, with a lock of its own: it has the port's number in its name,
# which another start does not get.
LOSES_A_NODE = """
import os, time
import ray
import shlex
from muster.placement import Model, Policy, Probe, Replicas, discover_nodes
ray.init(log_to_driver=False, logging_level="error")
def server(name, model):
    lock = os.path.join(os.getcwd(), "locks", name + "-{rank}-{port}")
    return Replicas(name, model, python_args=["-S", os.path.abspath("family.py")], env={"MUSTER_PLACEMENT_TEST": lock},
                    probe=Probe("none"), policy=Policy(max_restarts=9), grace=1.0, on_event=print,
                    runtime_dir=os.path.join(os.getcwd(), "logs"))
wide = server("wide", Model("wide", pp=2, strategy="STRICT_SPREAD"))
only = server("only", Model("only", exclude_head=True))
with wide, only:
    before = [each.status()[0] for each in (wide, only)]
    print("placed", flush=True)
    def again(each):
        (status,) = each.status()
        return status.restarts and status.state == "ready"
    while not (again(wide) and again(only)):
        time.sleep(0.1)
    for was, each in zip(before, (wide, only)):
        (now,) = each.status()
        assert set(was.nodes) - set(now.nodes) and len(now.nodes) == len(was.nodes), (was, now)
    print("placed again", flush=True)
    while not os.path.exists("done"):
        time.sleep(0.1)
"""


class Families:
    """Those that the driver has started: by the locks that their members hold, and by what they wrote."""

    def __init__(self, cwd: Path) -> None:
        self.locks, self._logs = cwd / "locks", cwd / "logs"
        for directory in (self.locks, self._logs):
            directory.mkdir()
        (cwd / "family.py").write_text(FAMILY)

    def alive(self) -> set[str]:
        """Whoever has so much as one member left."""
        return {path.name for path in self.locks.iterdir() if not _can_be_locked(path)}

    def complete(self) -> int:
        """How many have ever been."""
        return sum(path.read_text().count("family complete") for path in self._logs.iterdir())

    def on(self, slurm: SlurmCommand, node: str) -> list[int]:
        """Members on a node, by their environment."""
        mark = f"MUSTER_PLACEMENT_TEST={self.locks}/".encode()
        return [pid for pid in slurm.lab.processes(node) if mark in _environment(pid)]


def _can_be_locked(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def servers(names: set[str]) -> list[str]:
    """Their servers and ranks."""
    return sorted(name.rpartition("-")[0] for name in names)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_what_is_placed_outlives_a_killed_node_on_the_others_and_nothing_of_it_is_left(slurm: SlurmCommand) -> None:
    slurm.python = ray_alone(slurm.cwd / "venv")
    (slurm.cwd / "driver.py").write_text(LOSES_A_NODE)
    families = Families(slurm.cwd)
    command = f"python {shlex.quote(scenarios.__file__)} && python driver.py"
    options = ("--spares", "1", "--on-node-loss", "replace", "--gpus-per-node", "2")
    given = [word for variable in ("PYTHONPATH=", *NOTICES_SOON) for word in ("--env", variable)]
    process = slurm.start(*slurm.run_args(*options, *given, "--", "bash", "-c", command, nodes=2, ray=True))
    try:
        wait_for("the servers", lambda: families.complete() == 3 or process.poll() is not None, 200)
        assert process.poll() is None, process.communicate()
        spare = (slurm.run_dir() / "attempt-0" / "hosts").read_text().split()[2]
        before = families.alive()
        assert servers(before) == ["only-0", "wide-0", "wide-1"]
        assert [bool(families.on(slurm, node)) for node in ("n1", "n2", spare)] == [True, True, False]
        with slurm.lost("n2"):
            wait_for("nothing to survive", lambda: not before & families.alive() or process.poll() is not None, 200)
            wait_for("another place", lambda: families.complete() == 6 or process.poll() is not None, 200)
            assert process.poll() is None, process.communicate()
            assert servers(families.alive()) == servers(before) and not before & families.alive()
            assert families.on(slurm, "n1") and families.on(slurm, spare)
            programs = json.loads(slurm("programs", "--json").stdout)["programs"]
            assert [program["name"] for program in programs] == ["only/1/0.0", "wide/1/0.0", "wide/1/0.1"]
            assert programs[0]["host"] == spare and {program["host"] for program in programs[1:]} == {"n1", spare}
            assert all(program["owned"] for program in programs)
            (slurm.cwd / "done").touch()
            out, err = process.communicate(timeout=100)
    finally:
        print(slurm("logs").stdout)  # for whoever reads of a failure
        process.kill()
        process.communicate()
    assert process.returncode == 0, out + err
    held = [line.removeprefix("holds: ") for line in out.splitlines() if line.startswith("holds: ")]
    assert held == [scenario.__name__ for scenario in scenarios.SCENARIOS]
    assert "muster-library.zip" in out and "placed again\n" in out
    assert not families.alive()
