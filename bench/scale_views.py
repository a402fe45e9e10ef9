"""Time and size of the views of runs with up to 2,000 nodes, and of lists with up to 2,000 runs.

    PYTHONPATH=. python bench/scale_views.py

The runs are synthetic (those of the tests), the browser is the distribution's Chromium. Seconds are CPU time, of the
whole process for commands, since it does not depend on the machine's load; only for the page in the browser they are
the time that passes. Results are medians of three rounds. Each view is measured at two sizes: a view that takes more
than in proportion to them misses its goal, as does one that takes more than its limit.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Goal, goals_table, machine, save
from rich.console import Console
from tests.browser import Browser, opened
from tests.views.synthetic import SyntheticRun, large_run
from tests.web.conftest import Site, served

from muster.views.terminal import Top

ROUNDS = 3
SIZES = (500, 2000)  # nodes, or runs
SLACK = 1.5  # how far from proportional the larger of two sizes may be, on a busy machine
LEAST_S = 0.05  # below that, a ratio of times says nothing
LIMITS_S = {
    "muster status": 1.5,
    "muster status --json": 1.5,
    "muster top, first screen": 1.0,
    "muster top, later screens": 0.5,
    "muster runs": 2.5,
    "ui: page of a run": 2.0,
    "ui: data of a live run": 1.0,
    "ui: list of runs, first": 2.0,
    "ui: list of runs, later": 0.5,
}
SIZE_LIMITS_MB = {"muster status --json": 1.0, "ui: data of a live run": 2.0, "ui: list of runs": 1.0}


def main() -> int:
    times: dict[str, dict[int, float]] = {name: {} for name in LIMITS_S}
    sizes: dict[str, dict[int, float]] = {name: {} for name in SIZE_LIMITS_MB}
    results: dict[str, Any] = {"machine": machine(), "load_before": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as scratch, opened() as browser:
        for size in SIZES:
            place = Path(scratch) / f"nodes-{size}"
            measure_nodes(place, size, browser, lambda name, s, size=size: times[name].update({size: s}), sizes)
            measure_runs(Path(scratch) / f"runs-{size}", size, times, sizes)
    goals = [Goal(f"{name}, {SIZES[-1]}", found[SIZES[-1]], LIMITS_S[name], " s") for name, found in times.items()]
    goals += [Goal(f"{n}, {SIZES[-1]}", found[SIZES[-1]], SIZE_LIMITS_MB[n], " MB") for n, found in sizes.items()]
    goals += [Goal(f"{n}: growth of its time", growth(found), SLACK) for n, found in times.items()]
    print(goals_table(goals))
    save("scale_views.json", {**results, "seconds": times, "mb": sizes, "goals": [goal.to_json() for goal in goals]})
    return 0 if all(goal.met for goal in goals) else 1


def growth(found: dict[int, float]) -> float:
    """Return the time per node or run at the larger size, divided by that at the smaller size."""
    small, large = (max(found[size], LEAST_S) / size for size in SIZES)
    return round(large / small, 2)


def measure_nodes(
    place: Path, nodes: int, browser: Browser, note: Callable[[str, float], None], sizes: dict[str, dict[int, float]]
) -> None:
    """Measure the views of an ended and of a live run with this many nodes."""
    with served(place) as site:
        large_run(place / "ended", nodes)
        live = live_run(place / "live", nodes)
        note("muster status", median(lambda: command(place, "status", "ended")[0]))
        note("muster status --json", median(lambda: command(place, "status", "ended", "--json")[0]))
        sizes["muster status --json"][nodes] = megabytes(command(place, "status", "ended", "--json")[1])
        note("ui: page of a run", median(lambda: usable(browser, site, nodes)))
        cookie = site.entered()
        note("ui: data of a live run", median(lambda: asked(site, "/api/runs/live", cookie)[0]))
        sizes["ui: data of a live run"][nodes] = megabytes(asked(site, "/api/runs/live", cookie)[1])
        first, later = screens(live)
        note("muster top, first screen", first)
        note("muster top, later screens", later)


def measure_runs(
    place: Path, runs: int, times: dict[str, dict[int, float]], sizes: dict[str, dict[int, float]]
) -> None:
    """Measure the lists of this many ended runs."""
    for number in range(runs):
        large_run(place / f"train-{number:05d}", 8)
    times["muster runs"][runs] = median(lambda: command(place, "runs")[0])
    with served(place) as site:
        cookie = site.entered()
        times["ui: list of runs, first"][runs], body = asked(site, "/api/runs", cookie)
        times["ui: list of runs, later"][runs] = median(lambda: asked(site, "/api/runs", cookie)[0])
        sizes["ui: list of runs"][runs] = megabytes(body)


def live_run(root: Path, nodes: int) -> SyntheticRun:
    """Write a run whose driver runs in its third cycle."""
    run = SyntheticRun(root, nodes - 4, spares=4)
    for lost in (17, 71):
        run.brings_up()
        run.loses(lost)
    run.brings_up()
    run.write("running")
    return run


def screens(run: SyntheticRun) -> tuple[float, float]:
    """Return the seconds for the first screen of `muster top`, and for one after a change."""
    console = Console(file=open(os.devnull, "w"), force_terminal=True, width=160, height=50)  # noqa: SIM115
    began = time.process_time()
    view = Top(run.paths)
    console.print(view)
    first, later = time.process_time() - began, []
    for number in range(ROUNDS):
        run.tell("note", 1.0, rank=0, host=run.hosts[0], text=f"note {number}")
        run.write("running")
        view._polled_at = 0.0
        began = time.process_time()
        console.print(view)
        later.append(time.process_time() - began)
    return round(first, 3), round(statistics.median(later), 3)


def usable(browser: Browser, site: Site, nodes: int) -> float:
    """Return the seconds until all nodes of the run are on its page."""
    os.utime(site.runs_dir / "ended" / "job.json")  # invalidates the server's cache of the previous round
    page = browser.page()
    page.go(site.link())
    page.wait_for("location.pathname === '/' && document.querySelectorAll('tbody tr').length === 2")
    began = time.monotonic()
    page.go(f"{site.origin}/run/ended")
    page.wait_for(f"document.querySelectorAll('.grid button').length === {nodes}")
    seconds = time.monotonic() - began
    assert page.errors() == []
    page.close()
    return seconds


def asked(site: Site, path: str, cookie: dict[str, str]) -> tuple[float, bytes]:
    """Return the CPU seconds of the server, which runs in this process, and its response."""
    began = time.process_time()
    _, _, body = site.ask(path, **cookie)
    json.loads(body)
    return round(time.process_time() - began, 3), body


def command(place: Path, *words: str) -> tuple[float, bytes]:
    """Run `muster`; return its CPU seconds and its output."""
    before = _children_s()
    argv = [sys.executable, "-m", "muster.cli.main", *words, "--runs-dir", str(place)]
    done = subprocess.run(argv, capture_output=True, check=True)
    return _children_s() - before, done.stdout


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def median(measure: Callable[[], float]) -> float:
    return round(statistics.median(measure() for _ in range(ROUNDS)), 3)


def megabytes(text: bytes) -> float:
    return round(len(text) / 1e6, 3)


if __name__ == "__main__":
    sys.exit(main())
