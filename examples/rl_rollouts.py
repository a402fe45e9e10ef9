"""Rollouts with code: tasks on every node write programs, run them in the cluster's sandbox, and score their output.

    muster run -f examples/rl_rollouts.yaml -N 4

The job file has `services: {sandbox: {kind: sandbox}}`. The policy here is random; replace it by a model. Each node's
endpoint uses the sandboxes of all nodes, so a busy or lost sandbox does not stop its node. On one machine: run
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
CONCURRENCY = 8


def write_program(rng: random.Random) -> tuple[str, str]:
    """Return a program, as a policy would write it (some are wrong, some crash), and the expected output."""
    numbers = [rng.randrange(100) for _ in range(8)]
    body = rng.choice(["print(sum(numbers))", "print(max(numbers))", "print(sum(numbers) // 0)", "while True: pass"])
    return f"numbers = {numbers}\n{body}", f"{sum(numbers)}\n"


def rollout(client: Client, seed: int) -> tuple[float | None, str]:
    """Return the reward and the node that ran the program. The reward is None if the node was lost meanwhile."""
    program, expected = write_program(random.Random(seed))
    try:
        result = client.execute(program, timeout=2)
    except SandboxLost:
        return None, "lost"
    return (1.0 if result.stdout == expected else 0.0), result.node


@ray.remote(num_cpus=0)
def rollouts(first: int, count: int, url: str | None) -> list[tuple[float | None, str]]:
    """Run this node's share through this node's endpoint."""
    endpoint = os.environ.get(VARIABLE) or url
    with Client(endpoint) as client, ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(lambda seed: rollout(client, seed), range(first, first + count)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=50, help="rollouts per node")
    each = parser.parse_args().rollouts
    url = os.environ.get(VARIABLE)
    try:
        with Client(url, wait_s=5) as client:
            client.execute("print(1)")
    except SandboxUnavailable as error:
        where = f"{VARIABLE} is {url}, but" if url else f"{VARIABLE} is not set, and"
        print(
            f"No sandbox: {where} no sandbox responds ({error}).\n"
            "Add `services: {sandbox: {kind: sandbox}}` to the job file, or start one with: muster sandbox serve",
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
