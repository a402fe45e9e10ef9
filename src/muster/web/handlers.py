"""The handlers of all paths. All but `/enter` need a session or a token; only this server's pages change something."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator

from muster.errors import BackendError
from muster.process.log_reader import READ_BYTES, LogReader, drop_notice
from muster.rundir import RunPaths
from muster.runs.stop import is_live, stop_reason, stop_run
from muster.views.metrics import metrics
from muster.views.report import asset
from muster.web import logs
from muster.web.auth import Auth, UiSession, is_loopback, may_change
from muster.web.messages import Answer, Request, json_answer, page_answer, text_answer
from muster.web.run_cache import RunCache

SCRIPTS = ("elements.js", "picture.js", "timeline.js", "services.js", "run.js", "logs.js", "ui.js")
CONTENT_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
FILES = ("page.css", *SCRIPTS)
MAX_SCRAPED_RUNS = 50
NOT_FOUND = "Not found."

_ENTERED = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Muster</title>
<link rel="icon" href="data:,"><p><a href="/">Continue</a>"""
_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Muster</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="muster-key" content="{key}">
<link rel="icon" href="data:,"><link rel="stylesheet" href="/assets/page.css"></head>
<body><a class="skip" href="#page">Skip to the contents</a><main id="page" tabindex="-1"><noscript>This page needs
JavaScript; <code>muster status</code> and <code>muster report --text</code> do not.</noscript></main>
{scripts}</body></html>
"""
_NO_SESSION = "Open the link that `muster ui` printed. It works once; press Enter there for another."


class Handlers:
    """Answer all requests of the web page and of Prometheus."""

    def __init__(self, auth: Auth, runs: RunCache) -> None:
        self._auth, self._runs = auth, runs
        self._stops: dict[str, str] = {}  # requested stops by run: "" while in progress, else the error

    def handle(self, request: Request) -> Answer:
        if not is_loopback(request.headers):
            return text_answer(421, "This server answers only for localhost.")
        if request.method == "GET" and request.path == ["enter"]:
            return self._enter(request)
        session = self._auth.session(request.headers)
        if request.method == "GET" and request.path == ["metrics"]:
            return self._metrics(session is not None or self._auth.may_scrape(request.headers))
        if session is None:
            return text_answer(403, _NO_SESSION)
        if request.method == "POST":
            return self._post(request, session)
        return self._get(request, session) if request.method == "GET" else text_answer(405, "GET or POST.")

    def _enter(self, request: Request) -> Answer:
        """Set the cookie and reload by a page: a SameSite cookie is not sent on a redirect from another site."""
        session = self._auth.enter(request.query("token"))
        if session is None:
            return text_answer(403, _NO_SESSION)
        return page_answer(_ENTERED, **{"Set-Cookie": self._auth.cookie(session)})

    def _metrics(self, allowed: bool) -> Answer:
        if not allowed:
            return text_answer(403, _NO_SESSION)
        records = [self._runs.record(run) for run in self._runs.runs()[:MAX_SCRAPED_RUNS]]
        return Answer(200, metrics(*records).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _get(self, request: Request, session: UiSession) -> Answer:
        path = request.path
        if not path or (path[0] == "run" and len(path) == 2):
            scripts = "".join(f'<script src="/assets/{name}"></script>\n' for name in SCRIPTS)
            return page_answer(_SHELL.format(key=html.escape(session.key), scripts=scripts))
        if path[0] == "assets" and len(path) == 2 and path[1] in FILES:
            return Answer(200, asset(path[1]).encode(), CONTENT_TYPES[path[1].rpartition(".")[2]])
        if path == ["api", "runs"]:
            return json_answer(self._runs.listing())
        run = self._runs.find(path[2]) if path[:2] == ["api", "runs"] and len(path) in (3, 4) else None
        if run is None:
            return text_answer(404, NOT_FOUND)
        resource = path[3] if len(path) == 4 else ""
        handlers: dict[str, Callable[[RunPaths, Request], Answer]] = {
            "": self._model,
            "changes": self._changes,
            "logs": self._logs,
            "log": self._log,
            "find": self._find,
            "download": self._download,
        }
        return handlers[resource](run, request) if resource in handlers else text_answer(404, NOT_FOUND)

    def _model(self, run: RunPaths, request: Request) -> Answer:
        return json_answer({**self._runs.model(run), "stopping": self._stops.get(run.root)})

    def _changes(self, run: RunPaths, request: Request) -> Answer:
        return Answer(200, self._runs.changes(run), "text/event-stream; charset=utf-8")

    # -- logs ---------------------------------------------------------------------------------------------------

    def _logs(self, run: RunPaths, request: Request) -> Answer:
        return json_answer([{"name": log.name, "size": log.size} for log in logs.logs(run)])

    def _log(self, run: RunPaths, request: Request) -> Answer:
        log = logs.find_log(run, request.query("name"))
        if log is None:
            return text_answer(404, "There is no such log.")
        on, most = request.query("on"), request.number("most", logs.MAX_PART_BYTES)
        start = request.number("on" if on else "from", -logs.MAX_PART_BYTES)
        part = logs.read_on(log, start) if on else logs.read_part(log, start, most)
        text = (drop_notice(part.dropped) if part.dropped else b"").decode() + part.data.decode("utf-8", "replace")
        return json_answer({"start": part.start, "end": part.end, "size": part.size, "text": text})

    def _find(self, run: RunPaths, request: Request) -> Answer:
        log, words = logs.find_log(run, request.query("name")), request.query("words")
        if log is None or not words:
            return text_answer(404, "There is no such log, or nothing to search for.")
        found = logs.find_lines(log, words.encode("utf-8", "replace"), request.number("from", 0))
        lines = [[at, line.decode("utf-8", "replace")] for at, line in found.lines]
        return json_answer({"lines": lines, "next": found.next, "size": found.size})

    def _download(self, run: RunPaths, request: Request) -> Answer:
        log = logs.find_log(run, request.query("name"))
        if log is None:
            return text_answer(404, "There is no such log.")
        name = "".join(char if char.isalnum() or char in "._-" else "-" for char in f"{run.run_id}-{log.name}")
        attached = {"Content-Disposition": f'attachment; filename="{name.encode("ascii", "replace").decode()}"'}
        # Parts of a log of several files may be removed meanwhile: its length is not known.
        length = log.size if log.is_whole else None
        return Answer(200, _pieces(log), "application/octet-stream", attached, length)

    # -- requests that change something -------------------------------------------------------------------------

    def _post(self, request: Request, session: UiSession) -> Answer:
        if not may_change(session, request.headers):
            return text_answer(403, "Only pages of this server may do this.")
        path = request.path
        run = self._runs.find(path[2]) if path[:2] == ["api", "runs"] and path[3:] == ["stop"] else None
        if run is None:
            return text_answer(404, NOT_FOUND)
        if not is_live(run):
            return text_answer(409, "The run has ended.")
        if self._stops.get(run.root) != "":
            self._stops[run.root] = ""
            threading.Thread(target=self._stop, args=(run,), daemon=True).start()
        return text_answer(202, "The run is being stopped.")

    def _stop(self, run: RunPaths) -> None:
        """Stop the run as `muster stop` does; record only errors, because the page shows the run's state."""
        try:
            stop_run(run, f"{stop_reason()}, in muster ui")
            self._stops.pop(run.root, None)
        except (BackendError, OSError) as error:
            self._stops[run.root] = str(error)


def _pieces(log: logs.LogFile) -> Iterator[bytes]:
    """Yield the log up to the size sent as Content-Length, even if it has grown since."""
    reader = LogReader(log.path)
    while reader.position < log.size and (data := reader.read_with_notice(min(log.size - reader.position, READ_BYTES))):
        yield data
