"""Cost of gathering the nodes of a run: the leader's CPU and messages. leader_scale.py measures it over sockets.

simulated  only the state machine and the quorum, on a virtual network: the leader's CPU in the real code, and messages.
losses     the same with the loss of 500 nodes while the driver runs: the CPU that they cost the leader, with everything
           that members send because of them.
store      torch's TCPStore for comparison: one client reads the records of all nodes with one multi_get, as torchrun's
           barrier does; compared with the event that closes a round of as many nodes, after which the leader has
           decided about all of them and nothing is left to read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from report import Goal, goals_table, machine, save, table
from tests.sim.large import LargeRun, simulate

from muster.lifecycle.events import Arrived
from muster.lifecycle.state_machine import RunConfig, RunStateMachine

NODES = 10_000
LOSSES = 500
DRIVER_S = 60.0
GOAL_CPU_S = 1.0


def main() -> int:
    options = _options()
    leave_on_signals()
    results: dict[str, Any] = {
        "machine": machine(),
        "simulated": simulated(options.nodes),
        "losses": losses(options.nodes),
        "store": beside_a_store(options.nodes, options.repeat),
    }
    wanted = goals(results)
    results["goals"] = [goal.to_json() for goal in wanted]
    path = save("rendezvous.json", results)
    print(json.dumps(results, indent=2) if options.json_only else _page(results, wanted, path))
    return 0


def simulated(nodes: int) -> dict[str, Any]:
    figures = simulate(LargeRun(nodes - 100, 100, losses=0, seed=7, leader_losses=0, seconds=DRIVER_S))
    figures["lead_cpu_to_close_s"] = figures.pop("rounds")[0]["lead_cpu_s"]
    return figures


def losses(nodes: int) -> dict[str, Any]:
    """Return the figures of runs that differ only in their losses."""
    spares = LOSSES + 100
    with_losses, without = (
        simulate(LargeRun(nodes - spares, spares, losses=count, seed=7, leader_losses=0, seconds=DRIVER_S))
        for count in (LOSSES, 0)
    )
    found = {"losses": LOSSES, "lead_cpu_of_losses_s": round(with_losses["lead_cpu_s"] - without["lead_cpu_s"], 3)}
    for name in ("outcome", "cycles", "terms", "messages_per_node", "bytes_per_node", "lead_cpu_s_by_event"):
        found[name] = with_losses[name]
    return found


def beside_a_store(nodes: int, repeat: int) -> dict[str, float]:
    """Return medians in milliseconds; both are interleaved, so that load on the machine affects both."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    keys = [f"arrived/{rank}" for rank in range(nodes)]
    records = [json.dumps({"rank": rank, "host": f"n{rank}", "address": "10.0.0.1"}) for rank in range(nodes)]
    client.multi_set(keys, records)
    reads, closes = [], []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        client.multi_get(keys)
        reads.append(time.perf_counter() - start)
        closes.append(_close(nodes))
    return {
        "keys": nodes,
        "multi_get_ms": round(1000 * statistics.median(reads[1:]), 1),  # the first warms up
        "close_ms": round(1000 * statistics.median(closes[1:]), 1),
    }


def _close(nodes: int) -> float:
    """Return the duration of the last arrival, which assigns the roles of all nodes."""
    protocol = RunStateMachine(RunConfig([f"n{rank}" for rank in range(nodes)], spares=100), 0.0)
    for rank in range(nodes - 1):
        protocol.handle(Arrived(rank, f"n{rank}"), 0.0)
    start = time.perf_counter()
    protocol.handle(Arrived(nodes - 1, f"n{nodes - 1}"), 0.0)
    return time.perf_counter() - start


def goals(results: dict[str, Any]) -> list[Goal]:
    sim, store = results["simulated"], results["store"]
    closing = f"leader's CPU to close {sim['nodes']} arrivals"
    read, close = store["multi_get_ms"], store["close_ms"]
    return [
        Goal(closing, sim["lead_cpu_to_close_s"], GOAL_CPU_S, " s", below=True),
        Goal(
            f"leader's CPU for {LOSSES} losses", results["losses"]["lead_cpu_of_losses_s"], GOAL_CPU_S, " s", below=True
        ),
        Goal(f"close of {store['keys']} against the store's read", close, read, " ms", below=True),
    ]


def _page(results: dict[str, Any], wanted: list[Goal], path: Path) -> str:
    parts = [goals_table(wanted)]
    for name in ("simulated", "losses", "store"):
        rows = [[key, str(value)] for key, value in results[name].items() if not isinstance(value, dict)]
        parts += ["", table([[name, ""], *rows])]
    return "\n".join([*parts, "", f"written to {path}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the cost of gathering the nodes of a run.")
    parser.add_argument("--nodes", type=int, default=NODES, metavar="N", help=f"simulated nodes (default: {NODES})")
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="reads of the store (default: 20)")
    parser.add_argument("--json-only", action="store_true", help="print the results as JSON and nothing else")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
