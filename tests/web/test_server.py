"""The server over HTTP: nothing without a session, nothing changed by others, and what each path answers."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
from pathlib import Path

import pytest
from tests.running import wait_for
from tests.views.synthetic import SyntheticRun, hostile_run, large_run
from tests.web.conftest import Site

from muster.web.server import MAX_CONNECTIONS

PATHS = [
    "/",
    "/run/r",
    "/assets/ui.js",
    "/api/runs",
    "/api/runs/r",
    "/api/runs/r/changes",
    "/api/runs/r/logs",
    "/metrics",
    "/no",
]


@pytest.fixture
def run(site: Site) -> SyntheticRun:
    run = SyntheticRun(site.runs_dir / "r", nodes=2)
    run.brings_up()
    run.ends(3)
    return run


@pytest.mark.parametrize("path", PATHS)
def test_without_a_session_there_is_nothing_to_see(site: Site, run: SyntheticRun, path: str) -> None:
    for headers in ({}, {"Cookie": "muster-1=x"}, {"Cookie": f"{site.auth.cookie_name}=guess"}):
        status, _, body = site.ask(path, **headers)
        assert status == 403 and b"gpu" not in body and b"train" not in body and b"muster-key" not in body


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token_gives_no_cookie(site: Site, token: str) -> None:
    site.auth.new_link()
    status, headers, _ = site.ask(f"/enter?token={token}")
    assert status == 403 and "Set-Cookie" not in headers


def test_a_link_works_once(site: Site, run: SyntheticRun) -> None:
    path = site.link().removeprefix(site.origin)
    status, headers, body = site.ask(path)
    assert status == 200 and b'rel="icon" href="data:,"' in body  # else the browser asks for one, in vain
    assert site.ask("/api/runs", Cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200
    assert site.ask(path)[0] == 403


def test_another_name_for_loopback_is_refused_even_with_the_cookie(site: Site, run: SyntheticRun) -> None:
    for host in ("evil.example", f"evil.example:{site.server.port}", "127.0.0.1.nip.example"):
        assert site.ask("/api/runs", Host=host, **site.entered())[0] == 421
    assert site.ask("/api/runs", Host="localhost:1234", **site.entered())[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_forbids_foreign_scripts_frames_and_copies(site: Site, run: SyntheticRun, path: str) -> None:
    headers = site.ask_headers(path, **site.entered())
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


def key(site: Site, cookie: dict[str, str]) -> str:
    _, _, body = site.ask("/", **cookie)
    found = re.search(rb'name="muster-key" content="([^"]+)"', body)
    assert found is not None
    return found[1].decode()


def test_no_other_origin_can_stop_a_run(site: Site) -> None:
    run = SyntheticRun(site.runs_dir / "live", nodes=2)
    run.brings_up()
    run.write("running")
    cookie = site.entered()
    stop, own = "/api/runs/live/stop", {"Origin": site.origin, "X_Muster_Key": key(site, cookie)}
    evil: list[dict[str, str]] = [
        {},
        {"Origin": site.origin},
        {"X_Muster_Key": own["X_Muster_Key"]},
        {**own, "Origin": "http://evil.example"},
        {**own, "Origin": "http://127.0.0.1:1"},
        {**own, "Sec_Fetch_Site": "same-site"},
        {**own, "X_Muster_Key": "x"},
    ]
    for headers in evil:
        assert site.ask(stop, "POST", **cookie, **headers)[0] == 403, headers
    assert site.ask(stop, "POST", **own)[0] == 403  # and no stranger
    assert site.ask(stop, **cookie, **own)[0] == 404  # a link is no request
    assert not os.path.exists(run.attempt.stop_request)
    assert site.ask("/api/runs/nothing/stop", "POST", **cookie, **own)[0] == 404


def test_a_run_that_is_over_cannot_be_stopped(site: Site, run: SyntheticRun) -> None:
    cookie = site.entered()
    own = {"Origin": site.origin, "X_Muster_Key": key(site, cookie)}
    assert site.ask("/api/runs/r/stop", "POST", **cookie, **own)[0] == 409


def test_the_list_has_a_row_and_a_bar_for_each_run_the_newest_first(site: Site, run: SyntheticRun) -> None:
    large_run(site.runs_dir / "large", nodes=12)
    os.utime(run.paths.job, (1, 1))
    rows = json.loads(site.ask("/api/runs", **site.entered())[2])
    assert [(row["run"], row["state"], row["exit_code"]) for row in rows] == [
        ("large", "succeeded", 0),
        ("r", "failed", 3),
    ]
    assert [part[0] for part in rows[0]["bar"]] == ["pending", "lost", "launching", "driver", "finishing"]
    assert rows[1]["bar"][0] == ["pending", 30000]
    for row in rows:
        assert sum(ms for _, ms in row["bar"]) == pytest.approx(row["took"], abs=5)


def test_the_model_of_a_run_is_fetched_and_its_report_is_left(site: Site, run: SyntheticRun) -> None:
    status, _, body = site.ask("/api/runs/r", **site.entered())
    assert status == 200 and json.loads(body)["attempts"][0]["nodes"][1][1] == "gpu0001"
    wait_for("its report", lambda: os.path.exists(run.paths.report))


@pytest.mark.parametrize(
    "path", ["/api/runs/..", "/api/runs/%2e%2e%2fr", "/assets/..%2freport.py", "/api/runs/r/x", "//", "/%ff"]
)
def test_paths_that_mean_nothing_find_nothing(site: Site, run: SyntheticRun, path: str) -> None:
    assert site.ask(path, **site.entered())[0] in (200, 404) and (path == "//") == (
        site.ask(path, **site.entered())[0] == 200
    )


def test_a_log_is_fetched_by_ranges_searched_and_downloaded(site: Site, run: SyntheticRun) -> None:
    Path(run.attempt.driver_log).write_bytes(b"one\ntwo \xff\nthree\n")
    name, cookie = "name=attempt-0/logs/driver.log", site.entered()
    part = json.loads(site.ask(f"/api/runs/r/log?{name}&from=4", **cookie)[2])
    assert (part["start"], part["end"], part["text"]) == (4, 16, "two \ufffd\nthree\n")
    found = json.loads(site.ask(f"/api/runs/r/find?{name}&words=THR", **cookie)[2])
    assert (found["lines"], found["next"]) == ([[10, "three"]], None)
    status, headers, body = site.ask(f"/api/runs/r/download?{name}", **cookie)
    assert (status, body) == (200, b"one\ntwo \xff\nthree\n")
    assert headers["Content-Disposition"] == 'attachment; filename="r-attempt-0-logs-driver.log"'
    assert site.ask("/api/runs/r/log?name=../token", **cookie)[0] == 404


def test_hostile_names_stay_in_their_place_in_every_answer(site: Site) -> None:
    hostile_run(site.runs_dir / 'x"<b>')
    cookie = site.entered()
    assert json.loads(site.ask("/api/runs", **cookie)[2])[0]["run"] == 'x"<b>'
    status, headers, body = site.ask("/api/runs/x%22%3Cb%3E", **cookie)
    assert status == 200 and headers["Content-Type"] == "application/json"
    assert not [char for char in body.decode() if not char.isprintable() and char != "\n"]
    _, headers, _ = site.ask("/api/runs/x%22%3Cb%3E/download?name=attempt-0/logs/driver.log", **cookie)
    assert headers["Content-Disposition"] == 'attachment; filename="x--b--attempt-0-logs-driver.log"'


def test_metrics_need_a_session_or_the_token(site: Site, run: SyntheticRun) -> None:
    assert site.ask("/metrics", Authorization="Bearer wrong")[0] == 403
    for headers in (site.entered(), {"Authorization": "Bearer scrape-me"}):
        status, answered, body = site.ask("/metrics", **headers)
        assert status == 200 and answered["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b'muster_run_exit_code{run="r"} 3' in body
    assert site.ask("/api/runs", Authorization="Bearer scrape-me")[0] == 403


def test_changes_are_sent_as_they_happen(site: Site) -> None:
    run = SyntheticRun(site.runs_dir / "live", nodes=2)
    run.write("gathering")
    connection = http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=120)
    connection.request("GET", "/api/runs/live/changes", headers=site.entered())
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert answer.readline() == b"event: changed\n"
    answer.readline(), answer.readline()
    run.brings_up()
    run.write("running")
    assert answer.readline() == b"event: changed\n"
    connection.close()


def test_requests_that_are_too_large_or_of_no_known_kind_are_refused(site: Site) -> None:
    assert site.ask("/", "POST", Content_Length="999999")[0] == 413
    assert site.ask("/", "DELETE", **site.entered())[0] == 405
    assert site.ask("/", "OPTIONS", Origin="http://evil.example")[0] == 403


def test_connections_of_others_that_say_nothing_do_not_keep_us_out(
    site: Site, run: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.web.server._Handler.timeout", 1.0)
    idle = [socket.create_connection(("127.0.0.1", site.server.port)) for _ in range(MAX_CONNECTIONS + 20)]
    try:
        cookie = site.entered()
        assert [site.ask(path, **cookie)[0] for path in ("/", "/assets/ui.js", "/api/runs")] == [200, 200, 200]
    finally:
        for connection in idle:
            connection.close()


def test_an_answer_leaves_no_connection_and_no_thread_behind(site: Site, run: SyntheticRun) -> None:
    before, cookie = threading.active_count(), site.entered()
    for _ in range(2 * MAX_CONNECTIONS):
        assert site.ask("/assets/page.css", **cookie)[1]["Connection"] == "close"
    wait_for("the threads to end", lambda: threading.active_count() <= before)
