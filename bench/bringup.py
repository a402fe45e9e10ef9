"""Time before and after the driver, compared: Muster, `ray symmetric-run`, and a hand-written script.

Starts a lab (a real Slurm on this machine; needs root), runs the launchers interleaved, in a different order in each
round, and removes the lab. measuring.py describes the measurement, launchers.py the compared launchers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from launchers import COMPARED, JOBS, LAUNCHERS, Launcher, LaunchFailed, Site
from measuring import Round, measure
from report import Goal, goals_table, machine, save, table

from muster.lab import Lab, LabError

LAB_DIR = Path("/run/ml-bench")
Print = Callable[[str], None]
Rounds = dict[str, list[Round]]


def main() -> int:
    options = _options()
    show: Print = (lambda text: None) if options.json_only else (lambda text: print(text, flush=True))
    leave_on_signals()
    try:
        with Lab(nodes=options.nodes, state_dir=options.lab_dir, shared=[JOBS]) as lab:
            site = Site(lab, options.nodes, sys.executable)
            rounds, failures = run_rounds(site, options.launchers, options.rounds, options.timeout, show)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    results = summarize(options.nodes, rounds, failures)
    print(json.dumps(results, indent=2) if options.json_only else _page(results, rounds))
    if set(COMPARED) <= set(options.launchers):
        show(f"\nwritten to {save('bringup.json', results)}")
    else:
        show("\nnot written: only a comparison of all launchers is kept")
    return 1 if failures else 0


def run_rounds(
    site: Site, names: list[str], rounds: int, timeout_s: float, show: Print
) -> tuple[Rounds, list[dict[str, Any]]]:
    """Run all launchers in all rounds; a failed job is recorded and does not count as a round."""
    directory = site.lab.plan.shared_dir
    measured: Rounds = {name: [] for name in names}
    failures: list[dict[str, Any]] = []
    show("warming up: one run by hand, not counted")
    warm_up = _try(LAUNCHERS["by_hand"], site, directory / "warm-up", timeout_s)
    if isinstance(warm_up, str):
        show(f"the warm-up FAILED: {warm_up}")
    for number, name in _turns(names, rounds):
        found = _try(LAUNCHERS[name], site, directory / f"{number}-{name}", timeout_s)
        if isinstance(found, Round):
            measured[name].append(found)
            times = f"to driver {found.to_driver_s:6.2f} s   after {found.after_driver_s:6.2f} s"
            show(f"round {number}  {name:21} {times}")
        else:
            failures.append({"round": number, "launcher": name, "error": found.splitlines()[0]})
            show(f"round {number}  {name:21} FAILED: {found}")
    return measured, failures


def _try(launcher: Launcher, site: Site, directory: Path, timeout_s: float) -> Round | str:
    try:
        return measure(launcher, site, directory, timeout_s)
    except LaunchFailed as error:
        return str(error)


def _turns(names: list[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield round and launcher; each round begins with another launcher, so that the order has no effect."""
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            yield number + 1, name


def summarize(nodes: int, rounds: Rounds, failures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results to save: medians and rounds of each launcher, ratios and goals."""
    results: dict[str, Any] = {"machine": machine(), "nodes": nodes}
    for name, measured in rounds.items():
        medians = {what: _median(measured, what) for what in ("to_driver_s", "driver_s", "after_driver_s")}
        results[name] = {**medians, "rounds": [one.to_json() for one in measured]}
    if failures:
        results["failures"] = failures
    results["ratios"] = _ratios(results)
    results["goals"] = [goal.to_json() for goal in goals(results)]
    return results


def _median(measured: list[Round], what: str) -> float | None:
    return round(statistics.median(getattr(one, what) for one in measured), 3) if measured else None


def _ratios(results: dict[str, Any]) -> dict[str, float]:
    """Return Muster's median times divided by those of the others."""
    return {
        f"muster/{name} {what}": round(results["muster"][what] / results[name][what], 3)
        for name in LAUNCHERS
        for what in ("to_driver_s", "after_driver_s")
        if name != "muster" and _has(results, name) and _has(results, "muster")
    }


def _has(results: dict[str, Any], name: str) -> bool:
    return results.get(name, {}).get("to_driver_s") is not None


def goals(results: dict[str, Any]) -> list[Goal]:
    wanted = [("by_hand", 0.9, False), ("symmetric_run", 1.0, True)]
    ratios = [
        Goal(f"to driver: muster / {name}", results["ratios"][f"muster/{name} to_driver_s"], most, below=below)
        for name, most, below in wanted
        if f"muster/{name} to_driver_s" in results["ratios"]
    ]
    after = [Goal("after driver: muster", results["muster"]["after_driver_s"], 3.0, " s")]
    return ratios + (after if _has(results, "muster") else [])


def _page(results: dict[str, Any], rounds: Rounds) -> str:
    rows = [["launcher (medians)", "to driver", "driver itself", "after driver", "rounds"]]
    for name, measured in rounds.items():
        if measured:
            times = [results[name][what] for what in ("to_driver_s", "driver_s", "after_driver_s")]
            rows.append([name, *(f"{value:.2f} s" for value in times), str(len(measured))])
    parts = ["", table(rows), "", *(f"{name:42} {value:5.2f}" for name, value in results["ratios"].items())]
    return "\n".join([*parts, "", goals_table(goals(results))])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the time before and after the driver on a Slurm lab.")
    parser.add_argument("--rounds", type=_count, default=3, metavar="N", help="rounds of each launcher (default: 3)")
    parser.add_argument(
        "--nodes", type=_count, default=4, metavar="N", help="nodes of the lab and the jobs (default: 4)"
    )
    parser.add_argument(
        "--launchers",
        type=_launchers,
        default=list(COMPARED),
        metavar="A,B",
        help=f"launchers to run, of {', '.join(LAUNCHERS)} (default: {','.join(COMPARED)})",
    )
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds per job (default: 300)")
    parser.add_argument(
        "--lab-dir", type=Path, default=LAB_DIR, metavar="DIR", help=f"directory of the lab (default: {LAB_DIR})"
    )
    parser.add_argument("--json-only", action="store_true", help="print the results as JSON and nothing else")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _launchers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in LAUNCHERS]:
        raise argparse.ArgumentTypeError(f"unknown launcher {', '.join(unknown)}; known are {', '.join(LAUNCHERS)}")
    return names


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
