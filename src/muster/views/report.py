"""The report of a run: one self-contained HTML file with data, scripts and style."""

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

from muster.process.log_reader import tail_lines
from muster.rundir import RunPaths, write_atomic
from muster.views.metrics import metrics
from muster.views.model import page_model
from muster.views.record import RunReader, RunRecord
from muster.views.summary import summary
from muster.views.timeline import Timeline

PUBLISH_LOCK = threading.RLock()  # threads of a process share the temporary name of an atomic write
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
    """Return the HTML file. Its security policy lists the hashes of Muster's scripts, so no other script can run."""
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
    """Return JSON for embedding in HTML: no character can end the element or begin another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _tails(run: RunRecord) -> Any:
    paths = RunPaths(run.root)
    return lambda attempt, node_index: tail_lines(paths.attempt(attempt).node_log(node_index))


def model_of(run: RunRecord, timeline: Timeline | None = None) -> dict[str, Any]:
    """Return the page's data with the log tails of failed nodes; `timeline` if it is built already."""
    return page_model(run, _tails(run), timeline)


def text_of(run: RunRecord) -> list[str]:
    """Return the summary with the log tails of failed nodes."""
    return summary(run, _tails(run))


def ensure_report(run: RunPaths, rewrite: bool = False) -> str | None:
    """Write report and metrics of an ended run into its directory unless they exist; return the report's path.

    It raises nothing: a full disk, another user's directory or unexpected contents must not fail the caller.
    """
    with contextlib.suppress(Exception), PUBLISH_LOCK:
        attempt = run.newest_attempt()
        ended = os.stat(attempt.outcome).st_mtime if attempt is not None else math.inf
        if not rewrite and os.path.exists(run.report) and os.stat(run.report).st_mtime >= ended:
            return run.report
        record = RunReader(run).read()
        if record.live:
            return None
        for path, text in ((run.metrics, metrics(record)), (run.report, report(record))):
            write_atomic(path, text)
            os.utime(path, (ended, ended))  # `muster clean` must not take the run for a younger one
        return run.report
    return None
