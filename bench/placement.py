"""Duration of planning 500 replicas on 1,000 nodes: equal, fragmented, and all different."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from report import Goal, goals_table, machine, save, table

from muster.placement import Cluster, Model, Node, plan

NODES, REPLICAS, REPEAT = 1000, 500, 5
GOAL_S = 1.0
GIB = 2**30
TOTAL = {"CPU": 128.0, "GPU": 8, "memory": 2048.0 * GIB}


def main() -> int:
    random.seed(1)
    rows, goals, results = [["what", "best s", "worst s", "outcome"]], [], {"machine": machine(), "plans": []}
    for what, cluster, models in cases():
        times = []
        for _ in range(REPEAT):
            start = time.perf_counter()
            made = plan(cluster, models)
            times.append(time.perf_counter() - start)
        rows.append([what, f"{min(times):.3f}", f"{max(times):.3f}", made.outcome.value])
        goals.append(Goal(what, max(times), GOAL_S, " s"))
        results["plans"].append({"what": what, "seconds": [round(t, 4) for t in times], "outcome": made.outcome.value})
    results["goals"] = [goal.to_json() for goal in goals]
    path = save("placement.json", results)
    print(f"{table(rows)}\n\n{goals_table(goals)}\n\n{path}")
    return 0 if all(goal.met for goal in goals) else 1


def cases() -> list[tuple[str, Cluster, Sequence[Model]]]:
    alike = Cluster(Node(f"n{n}", TOTAL, labels=rack(n)) for n in range(NODES))
    fragmented = Cluster(
        Node(f"n{n}", TOTAL, {**TOTAL, "GPU": random.randint(0, 8), "CPU": random.randint(0, 128)}, rack(n))
        for n in range(NODES)
    )
    unlike = Cluster(
        Node(f"n{n}", TOTAL, {**TOTAL, "CPU": random.uniform(64, 128), "memory": random.uniform(0, 2048) * GIB})
        for n in range(NODES)
    )
    half = REPLICAS // 2
    mixed = [
        Model("a", replicas=half, tp=2, cpus=30.0123, memory=68.1 * GIB),
        Model("b", replicas=half, cpus=23.3331, memory=115.3 * GIB),
    ]
    return [
        ("alike, TP 8", alike, [Model("m", replicas=REPLICAS, tp=8)]),
        ("alike, TP 8 x PP 2 over two nodes", alike, [Model("m", replicas=REPLICAS, tp=8, pp=2)]),
        ("alike, one more than fits", alike, [Model("m", replicas=REPLICAS + 1, tp=8, pp=2)]),
        ("fragmented, TP 4", fragmented, [Model("m", replicas=REPLICAS, tp=4)]),
        ("fragmented, TP 4 within a rack", fragmented, [Model("m", replicas=REPLICAS, tp=4, same="rack")]),
        ("no two alike, two models", unlike, mixed),
    ]


def rack(number: int) -> dict[str, Any]:
    return {"rack": str(number // 16)}


if __name__ == "__main__":
    raise SystemExit(main())
