"""A driver that tries what docs/reference/placement.md promises on its cluster: two nodes or more with equal GPUs.

    muster run --gpus-per-node 2 ... -- python scenarios.py [NAME...]

It needs Ray alone. Every scenario that holds is a line `holds: NAME`; one that does not is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

import muster
from muster.placement import (
    FREE,
    Model,
    Outcome,
    OwnedElsewhere,
    PlacementError,
    Probe,
    Replicas,
    SubprocessError,
    build_groups,
    build_pg,
    check_total_gpu_capacity,
    discover_nodes,
    get_free_port_in_bundle,
    plan,
)
from muster.placement.runtime.groups import GroupRequest, remove_groups

SLEEP = ["-S", "-c", "import time; time.sleep(1000)"]
SMALL = Model("small", gpus_per_rank=0, cpus=1)


def connect() -> None:
    ray.init(namespace="scenarios", log_to_driver=False, logging_level="error")


def gpus() -> int:
    (each,) = {int(node.total["GPU"]) for node in discover_nodes().nodes}
    return each


def sleeping(name: str, model: Model = SMALL, **options: Any) -> Replicas:
    return Replicas(name, model, python_args=SLEEP, probe=Probe("none"), grace=1.0, **options)


def refused(error: type[Exception], words: str, act: Any) -> None:
    try:
        act()
    except error as caught:
        assert words in str(caught), caught
    else:
        raise AssertionError(f"not refused: {words}")


def library() -> None:
    """The driver and Ray's workers import the same Muster."""
    there = ray.get(ray.remote(lambda: __import__("muster.placement").__file__).remote())
    assert there == muster.__file__, (there, muster.__file__)
    print("muster is", there)


def fragmentation() -> None:
    """Two GPUs are free, one on each of two nodes: enough, but not for one that wants both on one node."""
    held = gpus() - 1
    nodes = [node.id for node in discover_nodes().nodes]
    requests = [
        GroupRequest(f"hold-{n}", [{"GPU": held}], "STRICT_PACK", [{"ray.io/node-id": node}])
        for n, node in enumerate(nodes)
    ]
    groups = build_groups(requests)
    while sum(node.available.get("GPU", 0) for node in discover_nodes().nodes) != len(nodes):
        time.sleep(0.05)  # Ray's view of what is free is a moment old
    check_total_gpu_capacity(2, against=FREE)
    together = Model("together", tp=2, cpus=0, strategy="STRICT_PACK")
    verdict = plan(discover_nodes(), [together])
    assert verdict.outcome is Outcome.BUSY and "lacks 1 GPU (1 GPU left of" in verdict.explain(), verdict.explain()
    refused(
        PlacementError,
        "lacks 1 GPU (1 GPU left of",
        lambda: build_pg([{"GPU": 2}], "STRICT_PACK", name="together", ready_timeout_s=1),
    )
    with sleeping("split", Model("split", tp=2, cpus=0)) as server:  # one that may be split has a place
        assert len(set(server.status()[0].nodes)) == 2
    remove_groups(groups)


def head_exclusion() -> None:
    """The head gets nothing of a model that excludes it, and its GPUs do not count."""
    head = next(node.id for node in discover_nodes().nodes if node.head)
    others = len(discover_nodes().nodes) - 1
    model = Model("away", replicas=others, tp=gpus(), cpus=0, exclude_head=True)
    with sleeping("away", model) as server:
        assert head not in {node for status in server.status() for node in status.nodes}
        refused(PlacementError, "cannot fit, not even on the empty cluster", lambda: server.scale(others + 1))
    refused(
        RuntimeError,
        "besides the head have",
        lambda: check_total_gpu_capacity(others * gpus() + 1, ignore_head_node=True),
    )


def second_driver() -> None:
    """Another driver with the same name is refused, and takes over where it says so."""
    with sleeping("mine") as first:
        again = [sys.executable, __file__, "--claim"]
        done = subprocess.run([*again, "politely"], capture_output=True, text=True, timeout=200)
        assert f"OwnedElsewhere: server 'mine' belongs to process {os.getpid()} on " in done.stderr, done.stderr
        assert first.status()[0].state == "ready"
        done = subprocess.run([*again, "takeover"], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        while first.status()[0].state != "stopped":
            time.sleep(0.05)


def claim(how: str) -> None:
    with sleeping("mine", takeover=how == "takeover"):
        pass


def reconnecting() -> None:
    """Detached replicas outlive a connection and are looked after in the next one."""
    with sleeping("kept", detached=True) as server:
        before = server.status()
        refused(OwnedElsewhere, "server 'kept' belongs to", lambda: sleeping("kept").start())
        server.disconnect()
        ray.shutdown()
        connect()
        server.reconnect()
        assert server.status() == before


def bad_binary() -> None:
    """An error that says where, and the name and the place are free again."""
    for _ in range(2):
        refused(
            SubprocessError,
            "/no/such/program could not be started",
            lambda: Replicas("bad", SMALL, command=["/no/such/program"]).start(),
        )


def ports() -> None:
    """Fifty who ask at once for a port of one node get fifty."""
    group = build_pg([{"CPU": 1}], "PACK", name="ports")
    with ThreadPoolExecutor(50) as pool:
        given = list(pool.map(lambda _: get_free_port_in_bundle(group, 0, 30000), range(50)))
    assert len(set(given)) == 50, given
    remove_groups([group])


SCENARIOS = [library, fragmentation, head_exclusion, second_driver, reconnecting, bad_binary, ports]


def main() -> None:
    connect()
    if sys.argv[1:2] == ["--claim"]:
        return claim(sys.argv[2])
    for scenario in SCENARIOS:
        if len(sys.argv) == 1 or scenario.__name__ in sys.argv[1:]:
            scenario()
            print("holds:", scenario.__name__, flush=True)


if __name__ == "__main__":
    main()
