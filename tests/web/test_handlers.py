"""Answers to requests, without a socket: who gets what, and a stop that is requested once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.running import wait_for
from tests.views.synthetic import SyntheticRun

from muster.errors import BackendError
from muster.rundir import RunPaths
from muster.web import handlers as module
from muster.web.auth import KEY_HEADER, Auth, UiSession
from muster.web.handlers import FILES, Handlers
from muster.web.messages import Answer, Request
from muster.web.run_cache import RunCache

HOST = "127.0.0.1:1234"


class Client:
    """A browser with a session, which sends requests straight to the handlers."""

    def __init__(self, runs_dir: Path) -> None:
        self.auth = Auth("muster-1", "scrape-me")
        self.handlers = Handlers(self.auth, RunCache(runs_dir))
        session = self.auth.enter(self.auth.new_link())
        assert session is not None
        self.session: UiSession = session
        self.cookie = {"Host": HOST, "Cookie": f"muster-1={session.cookie}"}
        self.own = {**self.cookie, "Origin": f"http://{HOST}", KEY_HEADER: session.key}

    def get(self, target: str, **headers: str) -> Answer:
        return self.handlers.handle(Request("GET", target, headers or self.cookie))

    def json(self, target: str) -> Any:
        answer = self.get(target)
        assert answer.status == 200 and isinstance(answer.body, bytes), answer
        return json.loads(answer.body)

    def stop(self, run: str) -> int:
        return self.handlers.handle(Request("POST", f"/api/runs/{run}/stop", self.own)).status


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    run = SyntheticRun(tmp_path / "live", nodes=2)
    run.brings_up()
    run.write("running")
    return run


def text(answer: Answer) -> str:
    assert isinstance(answer.body, bytes)
    return answer.body.decode()


def test_the_page_loads_every_script_and_has_the_session_s_key(client: Client, run: SyntheticRun) -> None:
    for target in ("/", "/run/live"):
        page = text(client.get(target))
        assert f'name="muster-key" content="{client.session.key}"' in page
        assert all(f'"/assets/{name}"' in page for name in FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_the_page_has_its_type(client: Client, name: str) -> None:
    answer = client.get(f"/assets/{name}")
    assert answer.status == 200 and answer.body
    assert answer.kind.startswith("text/css" if name.endswith(".css") else "text/javascript")


@pytest.mark.parametrize(
    "target",
    [
        "/run",
        "/run/live/x",
        "/assets",
        "/assets/report.py",
        "/api",
        "/api/runs/none",
        "/api/runs/live/x",
        "/api/runs/live/log/x",
    ],
)
def test_other_paths_are_not_found(client: Client, run: SyntheticRun, target: str) -> None:
    assert client.get(target).status == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "PATCH"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    assert client.handlers.handle(Request(method, "/", client.own)).status == 405


def test_the_order_of_checks_is_host_then_session_then_path(client: Client) -> None:
    assert client.get("/none", Host="evil.example").status == 421
    assert client.get("/none", Host=HOST).status == 403
    assert client.get("/none").status == 404


def test_entering_sets_the_cookie_of_a_new_session(client: Client) -> None:
    answer = client.get(f"/enter?token={client.auth.new_link()}", Host=HOST)
    cookie = answer.headers["Set-Cookie"]
    assert answer.status == 200 and cookie.startswith("muster-1=") and "HttpOnly" in cookie
    assert client.get("/api/runs", Host=HOST, Cookie=cookie.partition(";")[0]).status == 200
    refused = client.get("/enter?token=x", Host=HOST)
    assert refused.status == 403 and refused.headers == {}


def test_changes_of_a_run_are_a_stream_that_begins_with_the_present_state(client: Client, run: SyntheticRun) -> None:
    answer = client.get("/api/runs/live/changes")
    assert (answer.status, answer.kind, answer.length) == (200, "text/event-stream; charset=utf-8", None)
    assert isinstance(answer.body, Iterator) and next(answer.body) == b"event: changed\ndata: {}\n\n"


def test_only_as_many_runs_as_the_limit_are_scraped(
    client: Client, run: SyntheticRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SyntheticRun(tmp_path / "other", nodes=1).write("running")
    os.utime(run.paths.job, (1, 1))
    assert {name for name in ("live", "other") if f'run="{name}"' in text(client.get("/metrics"))} == {"live", "other"}
    monkeypatch.setattr(module, "MAX_SCRAPED_RUNS", 1)
    assert {name for name in ("live", "other") if f'run="{name}"' in text(client.get("/metrics"))} == {"other"}


def test_logs_are_listed_read_followed_and_searched(client: Client, run: SyntheticRun) -> None:
    Path(run.attempt.driver_log).write_bytes(b"one\ntwo\nthree\n")
    assert {"name": "attempt-0/logs/driver.log", "size": 14} in client.json("/api/runs/live/logs")
    name = "name=attempt-0/logs/driver.log"
    assert client.json(f"/api/runs/live/log?{name}")["text"] == "one\ntwo\nthree\n"
    assert client.json(f"/api/runs/live/log?{name}&on=8")["text"] == "three\n"
    assert client.json(f"/api/runs/live/find?{name}&words=o&from=4")["lines"] == [[4, "two"]]
    for target in ("log?name=no", "find?name=no&words=o", f"find?{name}", "download?name=no"):
        assert client.get(f"/api/runs/live/{target}").status == 404


def test_a_download_has_the_announced_length_even_if_the_log_grows(client: Client, run: SyntheticRun) -> None:
    log = Path(run.attempt.driver_log)
    log.write_bytes(b"x" * 1000)
    answer = client.get("/api/runs/live/download?name=attempt-0/logs/driver.log")
    with log.open("ab") as file:
        file.write(b"more")
    assert not isinstance(answer.body, bytes)
    assert answer.length == 1000 and b"".join(answer.body) == b"x" * 1000


class Stops:
    """Takes the place of `stop_run`: notes the calls, and ends each when the test says how."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.errors: list[Exception | None] = []
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, run: RunPaths, reason: str) -> None:
        self.reasons.append(reason)
        self.begun.release()
        assert self.may_end.acquire(timeout=120)
        if error := self.errors.pop(0):
            raise error

    def end(self, error: Exception | None = None) -> None:
        self.errors.append(error)
        self.may_end.release()


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Stops:
    stops = Stops()
    monkeypatch.setattr(module, "stop_run", stops)
    return stops


def test_a_stop_in_progress_is_not_requested_again(client: Client, run: SyntheticRun, stops: Stops) -> None:
    assert client.json("/api/runs/live")["stopping"] is None
    assert client.stop("live") == 202
    assert stops.begun.acquire(timeout=120)
    assert client.json("/api/runs/live")["stopping"] == ""
    assert client.stop("live") == 202
    stops.end()
    wait_for("the stop to end", lambda: client.json("/api/runs/live")["stopping"] is None)
    assert len(stops.reasons) == 1 and stops.reasons[0].endswith(", in muster ui")


def test_a_stop_that_failed_is_shown_with_its_error_and_can_be_requested_again(
    client: Client, run: SyntheticRun, stops: Stops
) -> None:
    client.stop("live")
    stops.end(BackendError("scancel failed"))
    wait_for("the error", lambda: client.json("/api/runs/live")["stopping"] == "scancel failed")
    assert client.stop("live") == 202
    stops.end()
    wait_for("the stop to end", lambda: client.json("/api/runs/live")["stopping"] is None)
    assert len(stops.reasons) == 2


def test_only_a_live_run_is_stopped_and_only_by_this_server_s_page(
    client: Client, run: SyntheticRun, stops: Stops
) -> None:
    assert client.stop("none") == 404
    refused = client.handlers.handle(Request("POST", "/api/runs/live/stop", client.cookie))
    assert refused.status == 403
    run.ends()
    assert client.stop("live") == 409
    assert stops.reasons == []
