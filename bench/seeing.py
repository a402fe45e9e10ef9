"""Speed of report and web pages: a run of a thousand nodes and three cycles, and a log of a gigabyte.

    PYTHONPATH=. python bench/seeing.py

The runs are synthetic (those of the tests), the browser is the distribution's Chromium. Results are medians of three
rounds; for the log, the slowest response. It exits with 1 if a goal is missed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Goal, goals_table, machine, save
from tests.browser import Browser, opened
from tests.views.synthetic import SyntheticRun, large_run
from tests.web.conftest import Site, served

from muster.views.record import RunReader
from muster.views.report import report

ROUNDS = 3
LOG = "attempt-0/logs/driver.log"
SIZE = 1 << 30


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch) / "runs") as site:
        run = large_run(site.runs_dir / "large", services=("sandbox", "judge"))
        results: dict[str, Any] = {"machine": machine(), "load_before": round(os.getloadavg()[0], 2)}
        results["report_s"], page = median(lambda: written(run))
        results["report_mb"] = round(page.stat().st_size / 1e6, 2)
        with opened() as browser:
            results["report_page_s"], _ = median(lambda: interactive(browser, page.as_uri()))
            results["ui_page_s"], _ = median(lambda: usable(browser, site, run))
        results["log_s"], results["find_s"] = log_answers(site, run)
    goals = [
        Goal("report of 1,000 nodes and 3 cycles, written", results["report_s"], 3.0, " s", below=True),
        Goal("its size", results["report_mb"], 5.0, " MB", below=True),
        Goal("it is interactive in the browser after", results["report_page_s"], 2.0, " s", below=True),
        Goal("the same run in `muster ui`, all nodes on the page after", results["ui_page_s"], 2.0, " s", below=True),
        Goal("a part of a 1 GB log, slowest", results["log_s"], 1.0, " s", below=True),
        Goal("an answer while it is searched, slowest", results["find_s"], 1.0, " s", below=True),
    ]
    print(goals_table(goals))
    save("seeing.json", {**results, "goals": [goal.to_json() for goal in goals]})
    return 0 if all(goal.met for goal in goals) else 1


def median(measure: Callable[[], tuple[float, Any]]) -> tuple[float, Any]:
    rounds = [measure() for _ in range(ROUNDS)]
    return round(statistics.median(seconds for seconds, _ in rounds), 3), rounds[-1][1]


def written(run: SyntheticRun) -> tuple[float, Path]:
    path = Path(run.paths.root).parent.parent / "report.html"
    began = time.monotonic()
    path.write_text(report(RunReader(run.paths).read()))
    return time.monotonic() - began, path


def interactive(browser: Browser, address: str) -> tuple[float, None]:
    """Measure from the navigation to the end of the load event, when all scripts have run."""
    page = browser.page()
    page.go(address)
    page.wait_for("document.querySelector('.timeline canvas').width > 300")
    seconds = page.run("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
    page.close()
    return seconds, None


def usable(browser: Browser, site: Site, run: SyntheticRun) -> tuple[float, None]:
    os.utime(run.paths.job)  # invalidates the server's cache of the previous round
    page = browser.page()
    page.go(site.link())
    page.wait_for("location.pathname === '/' && document.querySelectorAll('tbody tr').length === 1")
    began = time.monotonic()
    page.go(f"{site.origin}/run/large")
    page.wait_for("document.querySelectorAll('.grid button').length === 1000")
    seconds = time.monotonic() - began
    assert page.errors() == []
    page.close()
    return seconds, None


def log_answers(site: Site, run: SyntheticRun) -> tuple[float, float]:
    """Return the slowest response to a range of the log, and to a search through all of it."""
    line = b"step 000000: loss 1.0000, and so on for a while to fill the line until it has its hundred bytes .....\n"
    with open(run.attempt.driver_log, "wb") as file:
        for _ in range(SIZE // (len(line) * 10_000) + 1):
            file.write(line * 10_000)
        file.write(b"the needle\n")
    cookie, parts, finds = site.entered(), [], []
    for start in (-262_144, 0, SIZE // 2, SIZE - 1):
        parts.append(timed(site, f"log?name={LOG}&from={start}", cookie)[0])
    at: int | None = 0
    while at is not None:
        seconds, found = timed(site, f"find?name={LOG}&words=needle&from={at}", cookie)
        finds.append(seconds)
        at = found["next"]
    assert [line for _, line in found["lines"]] == ["the needle"]
    return round(max(parts), 3), round(max(finds), 3)


def timed(site: Site, path: str, cookie: dict[str, str]) -> tuple[float, Any]:
    began = time.monotonic()
    _, _, body = site.ask(f"/api/runs/large/{path}", **cookie)
    return time.monotonic() - began, json.loads(body)


if __name__ == "__main__":
    sys.exit(main())
