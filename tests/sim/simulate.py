"""Simulate a run with a virtual clock and network: one large run, or many small ones with random faults.

python -m tests.sim.simulate --nodes 10000 --spares 100 --losses 50 --seed 7
python -m tests.sim.simulate --schedules 100000 --jobs 2
python -m tests.sim.simulate --schedules 1 --seed 4711 --trace
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.sim.invariants import InvariantViolated
from tests.sim.large import LargeRun, simulate
from tests.sim.schedule import Result, run_random

SEEDS_PER_CHUNK = 250
VIOLATED_EXIT_CODE = 1


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    return _many(options) if options.schedules else _one(options)


def _one(options: argparse.Namespace) -> int:
    large = LargeRun(
        options.nodes,
        options.spares,
        options.losses,
        options.seed,
        leader_losses=min(options.leader_losses, options.losses),
        on_node_loss=options.on_node_loss,
        max_restarts=options.max_restarts,
    )
    try:
        figures = simulate(large)
    except InvariantViolated as error:
        print(f"seed {options.seed}: BROKEN: {error}")
        return VIOLATED_EXIT_CODE
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):26} {json.dumps(value) if isinstance(value, (list, dict)) else value}")
    return 0


def _many(options: argparse.Namespace) -> int:
    """Run schedules from `--seed` on; the first that violates an invariant is run again with a trace."""
    start, seen = time.perf_counter(), Counter[str]()
    terms, cycles, steps, virtual = Counter[int](), Counter[int](), 0, 0.0
    for result in _results(options):
        if result.broken is not None:
            print("\n".join(run_random(result.seed, traced=True).trace))
            print(f"seed {result.seed}: {result.broken}")
            return VIOLATED_EXIT_CODE
        if options.trace:
            print("\n".join(run_random(result.seed, traced=True).trace))
        seen[result.outcome] += 1
        terms[result.terms] += 1
        cycles[result.cycles + 1] += 1
        steps, virtual = steps + result.steps, virtual + result.seconds
    wall, count = time.perf_counter() - start, options.schedules
    print(f"{count} schedules, seeds {options.seed} to {options.seed + count - 1}: no invariant broken")
    for name, counts in (("ended", seen), ("by terms", terms), ("by cycles", cycles)):
        print(f"{name:10} " + ", ".join(f"{key}: {number}" for key, number in sorted(counts.items())))
    print(f"{steps} steps, {virtual / 3600:.0f} virtual hours in {wall:.0f} s, {1000 * wall / count:.1f} ms each")
    return 0


def _results(options: argparse.Namespace) -> Iterator[Result]:
    seeds = range(options.seed, options.seed + options.schedules)
    if options.jobs == 1:
        yield from map(run_random, seeds)
        return
    with multiprocessing.Pool(options.jobs) as pool:
        yield from pool.imap(run_random, seeds, SEEDS_PER_CHUNK)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulate runs with faults.")
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="active nodes of one large run")
    parser.add_argument("--spares", type=int, default=0, metavar="K", help="number of spares")
    parser.add_argument("--losses", type=int, default=0, metavar="L", help="nodes lost while the driver runs")
    parser.add_argument(
        "--leader-losses", type=int, default=1, metavar="M", help="losses that hit the leader (default: 1)"
    )
    parser.add_argument("--on-node-loss", choices=("fail", "replace", "restart"), default="replace")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="R")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="(default: 0)")
    parser.add_argument(
        "--schedules", type=int, default=0, metavar="N", help="run N small schedules with random faults instead"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes for schedules (default: 1)")
    parser.add_argument("--trace", action="store_true", help="print the events of each schedule")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
