"""The report of a run: one HTML file that needs nothing else, with the model, the scripts and the style inside."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import math
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

from muster.rundir import RunPaths, write_atomic
from muster.rundir.log_tail import node_tail
from muster.views.metrics import metrics
from muster.views.model import page_model
from muster.views.record import RunReader, RunRecord
from muster.views.summary import summary

ONE_WRITER = threading.RLock()  # what is published by rename has one temporary name for all of a process
ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("elements.js", "picture.js", "timeline.js", "services.js", "run.js", "report.js")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style></head>
<body><main id="run"><noscript><pre>{text}</pre></noscript></main>
<script type="application/json" id="model">{model}</script>
{scripts}
</body></html>
"""


def report(run: RunRecord) -> str:
    """The whole file. The policy names the hashes of our own scripts: nothing else in the page could ever run."""
    tails = _tails(run)
    scripts, style = [asset(name) for name in SCRIPTS], asset("page.css")
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'sha256-{_digest(style)}'"
    return _PAGE.format(
        policy=html.escape(policy),
        title=html.escape(f"{run.run_id}: {run.status['state']}"),
        style=style,
        text=html.escape("\n".join(summary(run, tails))),
        model=embedded(page_model(run, tails)),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def embedded(value: Any) -> str:
    """JSON that may stand inside a page: no character in it can end the element or begin another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _tails(run: RunRecord) -> Any:
    paths = RunPaths(run.root)
    return lambda attempt, rank: node_tail(paths.attempt(attempt), rank)


def model_of(run: RunRecord) -> dict[str, Any]:
    """The model with the ends of the failed nodes' logs."""
    return page_model(run, _tails(run))


def text_of(run: RunRecord) -> list[str]:
    """The summary with the ends of the failed nodes' logs."""
    return summary(run, _tails(run))


def leave_report(run: RunPaths, anew: bool = False) -> str | None:
    """Write report and metrics of a run that is over beside it, unless they are there; returns where the report is.

    Never a reason for anything to fail: a disk may be full, a directory another's, a run stranger than was thought of.
    """
    with contextlib.suppress(Exception), ONE_WRITER:
        attempt = run.newest_attempt()
        over = os.stat(attempt.outcome).st_mtime if attempt is not None else math.inf
        if not anew and os.path.exists(run.report) and os.stat(run.report).st_mtime >= over:
            return run.report
        record = RunReader(run).read()
        if record.live:
            return None
        for path, text in ((run.metrics, metrics(record)), (run.report, report(record))):
            write_atomic(path, text)
            os.utime(path, (over, over))  # so that a run looks no younger to `muster clean`
        return run.report
    return None
