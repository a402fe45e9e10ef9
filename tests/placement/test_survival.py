"""Whatever ends an actor, its driver, or Ray around it: nothing of its program survives. On real Ray.

Whether Ray kills the children of a worker that ends (RAY_kill_child_processes_on_worker_exit) makes no difference.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import MARK, cluster_of_two, connected, eventually, marking
from tests.placement.families import family

if TYPE_CHECKING:
    from tests.placement.conftest import Marked

    from muster.placement.runtime.managed import ManagedSubprocess

ray = pytest.importorskip("ray")

from muster.placement.runtime import inventory
from muster.placement.runtime.groups import build_pg, find_groups_anywhere, remove_groups
from muster.process.proctree import read_process

pytestmark = pytest.mark.ray

REPOSITORY = Path(__file__).parents[2]
DOOMED = {"third": signal.SIGKILL, "fourth": signal.SIGTERM}  # nodes, and what their raylets get


@pytest.fixture(
    scope="module",
    params=[True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["ray-kills-children", "ray-spares-children"],
)
def ray_cluster(
    shared_cluster: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """The shared one is of the first kind."""
    other = nullcontext(shared_cluster) if request.param else cluster_of_two(tmp_path_factory.mktemp("home"), False)
    with other as cluster, connected(cluster):
        yield cluster


@pytest.fixture
def doomed(ray_cluster: Any) -> Iterator[dict[str, Any]]:
    """Nodes that may be lost, each with a resource of its name."""
    nodes = {name: ray_cluster.add_node(num_cpus=1, resources={name: 1}) for name in DOOMED}
    yield nodes
    for node in nodes.values():
        ray_cluster.remove_node(node, allow_graceful=False)


@dataclass
class Life:
    """A family, from its beginning to what ends it."""

    event: str
    act: Callable[[Life], object]
    marked: Marked
    busy: bool = False  # a method of its actor's is in flight
    bundle: tuple[tuple[str, float], ...] = (("CPU", 0.1),)

    def begin(self) -> None:
        label = "".join(filter(str.isalnum, self.event))
        self.group = build_pg([dict(self.bundle)], "PACK", name=label)
        self.process: ManagedSubprocess = family(self.group, self.marked, label=label, lost_owner_grace=0.2)
        self.waiting = self.process.run_ref if self.busy else None

    def end(self) -> None:
        began = time.monotonic()
        self.act(self)
        eventually(f"nothing to survive: {self.event}", self.marked.gone)
        print(f"{self.event}: nothing left after {time.monotonic() - began:.1f} s")
        if self.waiting is not None:
            assert ray.wait([self.waiting], timeout=180)[0], self.event
        remove_groups([self.group])


def asked_to_leave(life: Life) -> None:
    """While somebody waits, as `wait` does it: in slices."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(life.process.wait)
        os.kill(life.process.facts["actor_pid"], signal.SIGTERM)
        with pytest.raises(ray.exceptions.RayActorError):
            waiting.result(timeout=180)


def end_raylet(node: Any, signum: int, life: Life) -> None:
    """And reap it: to its workers a zombie is alive."""
    process = node.all_processes["raylet"][0].process
    os.kill(process.pid, signum)
    process.wait(timeout=180)


def supervisor_of(process: ManagedSubprocess) -> int:
    """The parent of the program."""
    found = read_process(process.facts["pid"])
    assert found is not None
    return found[0]


EVENTS: dict[str, Callable[[Life], object]] = {
    "ray.kill": lambda life: ray.kill(life.process.actor),
    "worker killed": lambda life: os.kill(life.process.facts["actor_pid"], signal.SIGKILL),
    "group removed": lambda life: remove_groups([life.group]),
    "supervisor killed": lambda life: os.kill(supervisor_of(life.process), signal.SIGKILL),
}


@pytest.mark.kills_supervisors
def test_nothing_survives_whatever_ends_the_actor(doomed: dict[str, Any], tmp_path: Path) -> None:
    """All at once, since every actor costs a worker's start; a family that survives is named by what it survived."""
    with ExitStack() as marks:

        def life(event: str, act: Callable[[Life], object], **options: Any) -> Life:
            return Life(event, act, marks.enter_context(marking(tmp_path)), **options)

        lives = [life(event, act, busy=True) for event, act in EVENTS.items()]
        lives += [life(f"{event}, idle", act) for event, act in EVENTS.items()]
        lives += [life("worker asked to leave", asked_to_leave)]
        for name, signum in DOOMED.items():
            lose = partial(end_raylet, doomed[name], signum)
            lives.append(life(f"raylet gets {signum.name}", lose, bundle=((name, 1.0),)))
        with ThreadPoolExecutor(len(lives)) as pool:
            list(pool.map(Life.begin, lives))
            list(pool.map(Life.end, lives))


DRIVER = """
import os, sys, time, ray
from muster.placement import ManagedSubprocess, build_pg
from tests.placement.families import FAMILY
ray.init(address=sys.argv[1], namespace="killed", log_to_driver=False, logging_level="error")
group = build_pg([{"CPU": 1}], "PACK", name="of-a-driver")
held = [  # an actor that is bound ends with its last handle, too
    ManagedSubprocess.spawn(
        label, group, 0, num_gpus=0, python_args=["-S", "-c", FAMILY], subprocess_env={sys.argv[2]: lock},
        detached=label == "detached", lost_owner_grace=0.2,
    )
    for label, lock in zip(("bound", "detached"), sys.argv[3:])
]
while not all("family complete" in process.read_log_tail() for process in held):
    time.sleep(0.05)
print("ready", flush=True)
time.sleep(1000)
"""


def owned() -> dict[str, bool | None]:
    return {program.name: program.ownership.owned for program in inventory.take_inventory().programs}


def test_a_killed_driver_takes_its_programs_along_and_leaves_the_detached_without_an_owner(
    ray_cluster: Any, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])}
    with marking(tmp_path) as bound, marking(tmp_path) as detached:
        command = [sys.executable, "-c", DRIVER, ray_cluster.address, MARK, bound.value, detached.value]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=REPOSITORY) as driver:
            try:
                assert driver.stdout is not None and "ready\n" in driver.stdout  # Ray may have said something before
                assert owned() == {"bound": True, "detached": True}
            finally:
                driver.kill()
        eventually("what is bound to be gone", bound.gone)
        eventually("its actor, too", lambda: owned() == {"detached": False})
        assert not detached.gone()
        inventory.reap(inventory.take_inventory(), grace=0.2)
        eventually("the detached to be gone", lambda: detached.gone() and owned() == {})
    remove_groups(list(find_groups_anywhere("of-a-driver".__eq__).values()))
