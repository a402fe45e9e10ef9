"""What each path answers. Nothing without a session, and nothing is changed but by a request of our own page."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator

from muster.errors import BackendError
from muster.rundir import RunPaths
from muster.runs.stop import is_live, stop_reason, stop_run
from muster.views.metrics import metrics
from muster.views.report import asset
from muster.web import logs
from muster.web.auth import Auth, UiSession, is_loopback, may_change
from muster.web.messages import Answer, Request, as_json, as_page, as_text
from muster.web.run_cache import RunCache

SCRIPTS = ("elements.js", "picture.js", "timeline.js", "services.js", "run.js", "logs.js", "ui.js")
KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
FILES = ("page.css", *SCRIPTS)
MOST_SCRAPED = 50

_ENTERED = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Muster</title>
<link rel="icon" href="data:,"><p><a href="/">Go on</a>"""
_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Muster</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="muster-key" content="{key}">
<link rel="icon" href="data:,"><link rel="stylesheet" href="/assets/page.css"></head>
<body><a class="skip" href="#page">to the contents</a><main id="page" tabindex="-1"><noscript>This page needs scripts;
<code>muster status</code> and <code>muster report --text</code> need none.</noscript></main>
{scripts}</body></html>
"""
_STAY_OUT = "Open the link that `muster ui` printed. It works once; press Enter there for another."


class Handlers:
    """The whole of the site."""

    def __init__(self, auth: Auth, watch: RunCache) -> None:
        self._auth, self._watch = auth, watch
        self._stops: dict[str, str] = {}  # what became of requests to stop, by run

    def to(self, request: Request) -> Answer:
        """Whatever is asked, by whomever."""
        if not is_loopback(request.headers):
            return as_text(421, "This address is not ours.")
        if request.method == "GET" and request.path == ["enter"]:
            return self._enter(request)
        session = self._auth.session(request.headers)
        if request.method == "GET" and request.path == ["metrics"]:
            return self._metrics(session is not None or self._auth.may_scrape(request.headers))
        if session is None:
            return as_text(403, _STAY_OUT)
        if request.method == "POST":
            return self._post(request, session)
        return self._get(request, session) if request.method == "GET" else as_text(405, "GET or POST.")

    def _enter(self, request: Request) -> Answer:
        """The cookie, and a page that goes on by itself: it is not sent along where another site's link led here."""
        session = self._auth.enter(request.query("token"))
        if session is None:
            return as_text(403, _STAY_OUT)
        return as_page(_ENTERED, **{"Set-Cookie": self._auth.cookie(session)})

    def _metrics(self, allowed: bool) -> Answer:
        if not allowed:
            return as_text(403, _STAY_OUT)
        records = [self._watch.record(run) for run in self._watch.runs()[:MOST_SCRAPED]]
        return Answer(200, metrics(*records).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _get(self, request: Request, session: UiSession) -> Answer:
        path = request.path
        if not path or (path[0] == "run" and len(path) == 2):
            scripts = "".join(f'<script src="/assets/{name}"></script>\n' for name in SCRIPTS)
            return as_page(_SHELL.format(key=html.escape(session.key), scripts=scripts))
        if path[0] == "assets" and len(path) == 2 and path[1] in FILES:
            return Answer(200, asset(path[1]).encode(), KINDS[path[1].rpartition(".")[2]])
        if path == ["api", "runs"]:
            return as_json(self._watch.listing())
        run = self._watch.find(path[2]) if path[:2] == ["api", "runs"] and len(path) in (3, 4) else None
        if run is None:
            return as_text(404, "There is nothing of this name.")
        kind = path[3] if len(path) == 4 else ""
        of_run: dict[str, Callable[[RunPaths, Request], Answer]] = {
            "": self._model,
            "changes": self._changes,
            "logs": self._logs,
            "log": self._log,
            "find": self._find,
            "download": self._download,
        }
        return of_run[kind](run, request) if kind in of_run else as_text(404, "There is nothing of this name.")

    def _model(self, run: RunPaths, request: Request) -> Answer:
        return as_json({**self._watch.model(run), "stopping": self._stops.get(run.root)})

    def _changes(self, run: RunPaths, request: Request) -> Answer:
        return Answer(200, self._watch.changes(run), "text/event-stream; charset=utf-8")

    # -- logs ---------------------------------------------------------------------------------------------------

    def _logs(self, run: RunPaths, request: Request) -> Answer:
        return as_json([{"name": log.name, "size": log.size} for log in logs.logs(run)])

    def _log(self, run: RunPaths, request: Request) -> Answer:
        log = logs.find_log(run, request.query("name"))
        if log is None:
            return as_text(404, "There is no such log.")
        on, most = request.query("on"), request.number("most", logs.MOST_BYTES)
        start = request.number("on" if on else "from", -logs.MOST_BYTES)
        part = logs.read_on(log, start) if on else logs.read_part(log, start, most)
        text = part.data.decode("utf-8", "replace")
        return as_json({"start": part.start, "end": part.end, "size": part.size, "text": text})

    def _find(self, run: RunPaths, request: Request) -> Answer:
        log, words = logs.find_log(run, request.query("name")), request.query("words")
        if log is None or not words:
            return as_text(404, "There is no such log, or nothing to search for.")
        found = logs.find_lines(log, words.encode("utf-8", "replace"), request.number("from", 0))
        lines = [[at, line.decode("utf-8", "replace")] for at, line in found.lines]
        return as_json({"lines": lines, "next": found.next, "size": found.size})

    def _download(self, run: RunPaths, request: Request) -> Answer:
        log = logs.find_log(run, request.query("name"))
        if log is None:
            return as_text(404, "There is no such log.")
        name = "".join(char if char.isalnum() or char in "._-" else "-" for char in f"{run.run_id}-{log.name}")
        attached = {"Content-Disposition": f'attachment; filename="{name.encode("ascii", "replace").decode()}"'}
        return Answer(200, _pieces(log), "application/octet-stream", attached, log.size)

    # -- what changes something ---------------------------------------------------------------------------------

    def _post(self, request: Request, session: UiSession) -> Answer:
        if not may_change(session, request.headers):
            return as_text(403, "Only our own page may do this.")
        path = request.path
        run = self._watch.find(path[2]) if path[:2] == ["api", "runs"] and path[3:] == ["stop"] else None
        if run is None:
            return as_text(404, "There is nothing of this name.")
        if not is_live(run):
            return as_text(409, "It is over.")
        if self._stops.get(run.root) != "":
            self._stops[run.root] = ""
            threading.Thread(target=self._stop, args=(run,), daemon=True).start()
        return as_text(202, "It is being stopped.")

    def _stop(self, run: RunPaths) -> None:
        """As `muster stop` does it; the page follows the run, and needs to know only what went wrong."""
        try:
            stop_run(run, f"{stop_reason()}, in muster ui")
            self._stops.pop(run.root, None)
        except (BackendError, OSError) as error:
            self._stops[run.root] = str(error)


def _pieces(log: logs.LogFile) -> Iterator[bytes]:
    """As much as there was when it was asked for: the length was promised."""
    left = log.size
    with open(log.path, "rb") as file:
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            left -= len(data)
            yield data
