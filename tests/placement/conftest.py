"""For tests with Ray: a cluster of two nodes on this machine, shared by all of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ray_turns import turn

if TYPE_CHECKING:
    from muster.placement.planning.cluster import Node

DEADLINE_S = 180.0
MARK = "MUSTER_PLACEMENT_TEST"  # in the environment of every program that a test starts

WORKER_LABELS = {"rack": "b", "ray.io/accelerator-type": "H100"}


@contextlib.contextmanager
def cluster_of_two(home: Path, kills_children: bool = True) -> Iterator[Any]:
    """A head with 4 CPUs and 2 GPUs, a worker with 4 CPUs and 4 GPUs. GPUs are declared, not there.

    `kills_children`: whether Ray kills the children of a worker that ends, as it does by default.
    """
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))  # Ray writes a token there
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_kill_child_processes_on_worker_exit", "true" if kills_children else "false")
        with turn():
            cluster = Cluster(
                initialize_head=True,
                connect=False,
                head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False, "labels": {"rack": "a"}},
            )
            cluster.add_node(num_cpus=4, num_gpus=4, labels=WORKER_LABELS)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="package")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with cluster_of_two(tmp_path_factory.mktemp("home")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray_cluster(shared_cluster: Any) -> Iterator[Any]:
    """Connected to it."""
    with connected(shared_cluster):
        yield shared_cluster


@contextlib.contextmanager
def connected(cluster: Any) -> Iterator[None]:
    import ray

    connect(cluster)
    yield
    ray.shutdown()


def connect(cluster: Any) -> None:
    import ray

    ray.init(address=cluster.address, namespace="tests", log_to_driver=False, logging_level="warning")


@pytest.fixture
def head(ray_cluster: Any) -> Node:
    from muster.placement.runtime.nodes import discover_nodes

    return next(node for node in discover_nodes().nodes if node.head)


@pytest.fixture
def worker(ray_cluster: Any) -> Node:
    from muster.placement.runtime.nodes import discover_nodes

    return next(node for node in discover_nodes().nodes if not node.head)


class Marked:
    """The processes of one test, wherever they went."""

    def __init__(self, directory: Path) -> None:
        self.lock = directory / uuid.uuid4().hex  # held by families as long as any member lives
        self.lock.touch()
        self.value = str(self.lock)
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

    def gone(self) -> bool:
        """Whether nothing of it is left. One that forks and leaves, again and again, may be in no list of processes;
        but a lock that was taken before a fork is held until the last who inherited it is gone."""
        with open(self.lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return not self.alive()


@contextlib.contextmanager
def marking(directory: Path) -> Iterator[Marked]:
    """Nothing that carries the mark is left at the end, whatever became of it."""
    mark = Marked(directory)
    try:
        yield mark
        eventually("everything marked to be gone", mark.gone)
    finally:
        for pid in mark.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    with marking(tmp_path) as mark:
        yield mark


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

    from muster.placement.runtime.groups import build_pg

    made = build_pg(
        [{"CPU": 1}, {"CPU": 1, "GPU": 2}],
        "STRICT_SPREAD",
        name=f"test-{os.getpid()}",
        bundle_label_selector=[{"rack": "a"}, {"rack": "b"}],
    )
    yield made
    ray.util.remove_placement_group(made)
