"""Rollouts with code: tasks on every node write programs, run them in the cluster's sandbox, and score what they print.

    muster run -f examples/rl_rollouts.yaml -N 4

which has `services: {sandbox: {kind: sandbox}}`. The policy here is a random one; yours is a model. Each node's
endpoint serves the sandboxes of all nodes, so a node whose own is busy, or lost, loses nothing. On one machine alone:
`muster sandbox serve &`, then `python examples/rl_rollouts.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from muster.sandbox import Client, SandboxLost, SandboxUnavailable

VARIABLE = "MUSTER_SERVICE_SANDBOX"
AT_ONCE = 8


def write_program(rng: random.Random) -> tuple[str, str]:
    """A program for a small task, as a policy would write it (some are wrong, some crash), and what it should print."""
    numbers = [rng.randrange(100) for _ in range(8)]
    body = rng.choice(["print(sum(numbers))", "print(max(numbers))", "print(sum(numbers) // 0)", "while True: pass"])
    return f"numbers = {numbers}\n{body}", f"{sum(numbers)}\n"


def rollout(client: Client, seed: int) -> tuple[float | None, str]:
    """Its reward, and the node that ran it. None: the node was lost with it, which says nothing about the program."""
    program, wanted = write_program(random.Random(seed))
    try:
        result = client.execute(program, timeout=2)
    except SandboxLost:
        return None, "lost"
    return (1.0 if result.stdout == wanted else 0.0), result.node


@ray.remote(num_cpus=0)
def rollouts(first: int, count: int, url: str | None) -> list[tuple[float | None, str]]:
    """This node's share, through this node's own endpoint."""
    own = os.environ.get(VARIABLE) or url
    with Client(own) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda seed: rollout(client, seed), range(first, first + count)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=50, help="of each node")
    each = parser.parse_args().rollouts
    url = os.environ.get(VARIABLE)
    try:
        with Client(url, wait_s=5) as client:
            client.execute("print(1)")
    except SandboxUnavailable as error:
        where = f"{VARIABLE} is {url}, but" if url else f"{VARIABLE} is not set, and"
        print(
            f"No sandbox: {where} nobody answers ({error}).\n"
            "Put `services: {sandbox: {kind: sandbox}}` into the job file, or start one: muster sandbox serve",
            file=sys.stderr,
        )
        return 2
    ray.init(log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    tasks = [
        rollouts.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)).remote(
            number * each, each, url
        )
        for number, node in enumerate(nodes)
    ]
    done = [one for part in ray.get(tasks) for one in part]
    rewards = [reward for reward, _ in done if reward is not None]
    for host, count in sorted(Counter(host for _, host in done).items()):
        print(f"  {host}: {count} programs")
    print(f"{len(done)} rollouts from {len(nodes)} nodes, mean reward {sum(rewards) / max(1, len(rewards)):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
