"""For tests with Ray: a cluster of two nodes on this machine, shared by a module's tests."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from muster.placement.cluster import Node

DEADLINE_S = 60.0
MARK = "MUSTER_PLACEMENT_TEST"  # in the environment of every program that a test starts

WORKER_LABELS = {"rack": "b", "ray.io/accelerator-type": "H100"}


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head with 4 CPUs and 2 GPUs, a worker with 4 CPUs and 4 GPUs; connected to it. GPUs are declared, not there."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray writes a token there
        patch.setenv("RAY_AUTH_MODE", "disabled")
        cluster = Cluster(
            initialize_head=True,
            connect=False,
            head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False, "labels": {"rack": "a"}},
        )
        cluster.add_node(num_cpus=4, num_gpus=4, labels=WORKER_LABELS)
        connect(cluster)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def connect(cluster: Any) -> None:
    import ray

    ray.init(address=cluster.address, namespace="tests", log_to_driver=False, logging_level="warning")


@pytest.fixture
def head(ray_cluster: Any) -> Node:
    from muster.placement.nodes import survey

    return next(node for node in survey().nodes if node.head)


@pytest.fixture
def worker(ray_cluster: Any) -> Node:
    from muster.placement.nodes import survey

    return next(node for node in survey().nodes if not node.head)


class Marked:
    """The processes of one test, wherever they went."""

    def __init__(self) -> None:
        self.value = uuid.uuid4().hex
        self.env = {MARK: self.value}

    def alive(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"{MARK}={self.value}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Nothing that carries the mark is left when the test ends, whatever became of it."""
    mark = Marked()
    yield mark
    try:
        eventually("everything marked to be gone", lambda: not mark.alive())
    finally:
        for pid in mark.alive():
            os.kill(pid, signal.SIGKILL)


def eventually(what: str, look: Callable[[], Any], deadline: float = DEADLINE_S) -> Any:
    end = time.monotonic() + deadline
    while not (found := look()):
        assert time.monotonic() < end, f"waited {deadline:g} s for {what}"
        time.sleep(0.05)
    return found


@pytest.fixture
def group(ray_cluster: Any) -> Iterator[Any]:
    """A bundle of 1 CPU on the head, one of 1 CPU and 2 GPUs on the worker."""
    import ray

    from muster.placement.groups import build_pg

    made = build_pg([{"CPU": 1}, {"CPU": 1, "GPU": 2}], "STRICT_SPREAD", name=f"test-{os.getpid()}",
                    bundle_label_selector=[{"rack": "a"}, {"rack": "b"}])  # fmt: skip
    yield made
    ray.util.remove_placement_group(made)
