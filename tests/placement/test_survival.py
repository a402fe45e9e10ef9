"""Whatever ends an actor, or Ray around it: nothing of its program survives. On real Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import eventually
from tests.placement.families import family

if TYPE_CHECKING:
    from tests.placement.conftest import Marked

    from muster.placement.managed import ManagedSubprocess

ray = pytest.importorskip("ray")

from muster.placement import Model, Policy, Probe, Replicas  # noqa: E402
from muster.placement.groups import build_pg, remove_groups  # noqa: E402
from muster.process.tree import read_process  # noqa: E402

pytestmark = pytest.mark.ray

Act = Callable[["ManagedSubprocess", Any], object]

EVENTS: dict[str, Act] = {
    "ray.kill": lambda process, group: ray.kill(process.actor),
    "worker killed": lambda process, group: os.kill(process.facts["actor_pid"], signal.SIGKILL),
    "group removed": lambda process, group: remove_groups([group]),
    "keeper killed": lambda process, group: os.kill(keeper_of(process), signal.SIGKILL),
}


def keeper_of(process: ManagedSubprocess) -> int:
    """The parent of the program."""
    found = read_process(process.facts["pid"])
    assert found is not None
    return found[0]


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "a method in flight"])
@pytest.mark.parametrize("act", EVENTS.values(), ids=EVENTS)
@pytest.mark.usefixtures("ray_cluster")
def test_nothing_survives(act: Act, busy: bool, marked: Marked) -> None:
    group = build_pg([{"CPU": 1}], "PACK", name="survival")
    process = family(group, marked, lost_owner_grace=0.2)
    if busy:
        waiting = process.run_ref
    act(process, group)
    eventually("everything to be gone", lambda: not marked.alive())
    if busy:
        assert ray.wait([waiting], timeout=60)[0] == [waiting]
    remove_groups([group])


@pytest.mark.usefixtures("ray_cluster")
def test_nothing_survives_a_worker_that_is_asked_to_leave_while_somebody_waits(marked: Marked) -> None:
    group = build_pg([{"CPU": 1}], "PACK", name="survival")
    process = family(group, marked, lost_owner_grace=0.2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(process.wait)
        os.kill(process.facts["actor_pid"], signal.SIGTERM)
        with pytest.raises(ray.exceptions.RayActorError):
            waiting.result(timeout=60)
    eventually("everything to be gone", lambda: not marked.alive())
    remove_groups([group])


@pytest.fixture
def third_node(ray_cluster: Any) -> Iterator[Any]:
    """A node that may be lost."""
    node = ray_cluster.add_node(num_cpus=2, resources={"third": 1})
    yield node
    ray_cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=lambda signum: signum.name)
def test_nothing_survives_a_raylets_end(third_node: Any, signum: int, marked: Marked) -> None:
    group = build_pg([{"CPU": 1, "third": 1}], "PACK", name="on-the-third")
    family(group, marked, label=f"family-{signum}", lost_owner_grace=0.2)
    end_raylet(third_node, signum)
    eventually("everything to be gone", lambda: not marked.alive())
    remove_groups([group])


def end_raylet(node: Any, signum: int) -> None:
    """And reap it: to its workers a zombie is alive."""
    process = node.all_processes["raylet"][0].process
    os.kill(process.pid, signum)
    process.wait(timeout=60)


def test_a_replica_whose_node_is_lost_gets_another_place(ray_cluster: Any, third_node: Any, marked: Marked) -> None:
    spare = ray_cluster.add_node(num_cpus=4, resources={"third": 1})  # the smaller one is taken first
    server = Replicas(
        "moves", Model("m", gpus_per_rank=0, cpus=1, resources={"third": 1}), env=marked.env, probe=Probe("none"),
        python_args=["-c", "import time; time.sleep(1000)"], policy=Policy(backoff=0.1), wait_s=60,
    )  # fmt: skip
    try:
        with server:
            assert server.status()[0].nodes == (third_node.node_id,)
            end_raylet(third_node, signal.SIGKILL)
            eventually("another place", lambda: server.status()[0].nodes == (spare.node_id,) and marked.alive())
            eventually("the start there", lambda: server.status()[0].state == "ready")
    finally:
        ray_cluster.remove_node(spare)
