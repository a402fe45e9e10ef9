"""`muster sandbox`: options, output and exit codes; tests/sandbox runs real sandboxes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.invocation import Invoke

from muster.cli import sandbox
from muster.sandbox.client.loadgen import Measured
from muster.sandbox.client.retry_rules import Result
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.settings import SandboxSettings

OPTIONS_WITHOUT_A_SETTING = {"token_file"}


def load_of(**more: Any) -> dict[str, Any]:
    busiest = [{"worker": f"w{number}", "busy_s": 1.25, "executions": 3} for number in range(5)]
    fields = {"host": "n1", "slots": 8, "running": 2, "queued": 1, "sessions": 4, "workers": 6, "busiest": busiest}
    return {**fields, **more}


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Serve this body to any request; yields the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_every_option_of_serve_is_a_setting() -> None:
    names = {param.name for param in sandbox.sandbox.commands["serve"].params}
    assert names - OPTIONS_WITHOUT_A_SETTING <= {field.name for field in fields(SandboxSettings)}


def test_the_defaults_that_the_help_names_are_those_of_the_settings() -> None:
    defaults = SandboxSettings()
    named = {
        param.name: (param.help or "").rpartition("Default: ")[2].rstrip(".")
        for param in sandbox.sandbox.commands["serve"].params
        if isinstance(param, click.Option)
    }
    figures = {name: float(text) for name, text in named.items() if name and text.replace(".", "").isdigit()}
    assert len(figures) >= 10 and figures == {name: getattr(defaults, name) for name in figures}
    assert named["preload"] == ", ".join(defaults.preload)


def test_options_that_are_not_given_keep_their_default() -> None:
    given = {"memory_mb": 64, "env": ("A=1", "B=x=y"), "preload": (), "network": None, "unknown": 1}
    settings = sandbox._settings(given)
    assert (settings.memory_mb, settings.env) == (64, (("A", "1"), ("B", "x=y")))
    assert settings.preload == SandboxSettings().preload


def test_serve_passes_the_token_of_its_file_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    seen: list[SandboxSettings] = []

    async def serve(settings: SandboxSettings, announce: object) -> int:
        seen.append(settings)
        return 3

    monkeypatch.setattr(sandbox, "serve", serve)
    (tmp_path / "token").write_text("t0p\n")
    words = ["--token-file", str(tmp_path / "token"), "--listen", "127.0.0.1:7000", "--idle", "5"]
    assert invoke("sandbox", "serve", *words).code == 3
    assert (seen[0].token, seen[0].listen, seen[0].idle_s) == ("t0p", "127.0.0.1:7000", 5.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["exec"], "give either FILE or -c CODE"),
        (["exec", "-c", "1", "--env", "A"], "--env A: allowed is NAME=VALUE"),
        (["serve", "--workers-min", "5", "--workers-max", "2"], "workers_min is 5, more than workers_max, 2"),
        (["bench", "--requests", "1"], "1 is not in the range x>=10"),
    ],
)
def test_mistakes_are_refused(words: list[str], told: str, invoke: Invoke) -> None:
    done = invoke("sandbox", *words)
    assert (done.code, done.out) == (2, "") and told in done.err


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("timeout", 124), ("error", 1)])
def test_exec_at_a_url_passes_output_on_and_its_code_follows_from_the_result(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    asked: list[tuple[Any, ...]] = []

    class StubClient:
        def __init__(self, url: str) -> None:
            asked.append((url,))

        def __enter__(self) -> StubClient:
            return self

        def __exit__(self, *args: object) -> None:
            """Hold nothing."""

        def execute(self, *args: Any, **more: Any) -> Result:
            asked.append(args)
            return Result(status, "out", "err")

    monkeypatch.setattr(sandbox, "Client", StubClient)
    done = invoke("sandbox", "exec", "-c", "1 / 0", "--timeout", "7", "--url", "http://x")
    assert (done.code, done.out, done.err) == (code, "out", "err")
    assert asked == [("http://x",), ("1 / 0", "python", 7.0)]


def test_exec_runs_one_program_in_one_worker(monkeypatch: pytest.MonkeyPatch, invoke: Invoke, tmp_path: Path) -> None:
    async def run_once(settings: SandboxSettings, *program: Any) -> tuple[bytes, bytes, int]:
        assert (settings.workers_min, settings.workers_max) == (1, 1)
        return repr(program).encode(), b"bad", 9

    monkeypatch.setattr(sandbox, "run_once", run_once)
    (tmp_path / "program.sh").write_text("cat")
    (tmp_path / "input").write_text("data")
    words = [str(tmp_path / "program.sh"), "--language", "shell", "--stdin", str(tmp_path / "input")]
    done = invoke("sandbox", "exec", *words)
    assert (done.code, done.out, done.err) == (9, "('cat', 'shell', 60.0, b'data')", "bad")


def test_a_sandbox_that_cannot_start_is_one_line(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    async def run_once(*args: Any) -> None:
        raise SandboxError("no isolation here")

    monkeypatch.setattr(sandbox, "run_once", run_once)
    done = invoke("sandbox", "exec", "-c", "1")
    assert (done.code, done.err) == (1, "muster: error: no isolation here\n")


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (2, 1)])
def test_bench_prints_figures_and_fails_if_a_request_failed(
    failures: int, code: int, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    async def bench(*args: Any) -> tuple[str, dict[str, Measured]]:
        return "full", {"python": Measured(500, failures, 2.0, 1.25, 9.75)}

    monkeypatch.setattr(sandbox, "_bench", bench)
    done = invoke("sandbox", "bench")
    assert done.code == code and "isolation full" in done.out
    (row,) = [line for line in done.out.splitlines() if "python" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["python", "250", "1.2 ms", "9.8 ms", str(failures)]
    shown = json.loads(invoke("sandbox", "bench", "--json").out)
    assert (shown["isolation"], shown["python"]["per_second"]) == ("full", 250.0)


def test_load_shows_every_node_and_its_busiest_workers(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    nodes = {"10.0.0.1:7000": load_of(), "10.0.0.2:7000": {"error": "timed out"}}
    with answering(json.dumps({"nodes": nodes}).encode()) as url:
        done = invoke("sandbox", "load", "--url", url)
        shown = invoke("sandbox", "load", "--url", url, "--json")
    assert done.code == shown.code == 1  # a node does not answer
    assert json.loads(shown.out) == nodes
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "10.0.0." in line]
    busiest = ", ".join(f"w{number}: 1.2 s, 3 runs" for number in range(sandbox.BUSIEST_SHOWN))
    assert rows[0] == ["10.0.0.1:7000", "n1", "2/8", "1", "4", "6", busiest]
    assert rows[1][-1] == "no answer: timed out"


def test_load_succeeds_if_all_nodes_answer(invoke: Invoke) -> None:
    with answering(json.dumps({"nodes": {"a": load_of()}}).encode()) as url:
        assert invoke("sandbox", "load", "--url", url).code == 0


@pytest.mark.parametrize("body", [b"not JSON", b"{}"])
def test_load_of_something_else_is_an_error_with_a_remedy(body: bytes, invoke: Invoke) -> None:
    with answering(body) as url:
        done = invoke("sandbox", "load", "--url", url)
    assert done.code == 1 and f"no sandbox answers at {url}: " in done.err
    assert "give the URL of a running one with --url" in done.err


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"listen_port": None, "gateway": None}, "sandbox on http://x"),
        (
            {"listen_port": 7, "gateway": "python"},
            "sandbox on http://x, for all members by python, for other nodes on port 7",
        ),
    ],
)
def test_a_server_is_announced(facts: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    isolation = {"level": "full", "mechanisms": ["userns", "seccomp"], "why_not_more": []}

    class Served:
        def facts(self) -> dict[str, Any]:
            return {"url": "http://x", "isolation": isolation, **facts}

    sandbox._announce(Served())
    assert capsys.readouterr().out == f"{told}: isolation full (userns, seccomp)\n"


def test_why_isolation_is_not_stronger_is_said() -> None:
    isolation = {"level": "floor", "mechanisms": ["seccomp"], "why_not_more": ["no user namespaces", "no root"]}
    assert sandbox._isolation_text(isolation) == "isolation floor (seccomp); not more: no user namespaces; no root"


def test_sizes_and_times_may_have_units() -> None:
    words = ["--memory", "4G", "--file-size", "100", "--queue-wait", "2s", "--max-timeout", "1h"]
    given = sandbox.serve_.make_context("serve", words).params
    assert (given["memory_mb"], given["file_mb"], given["queue_wait_s"], given["max_timeout_s"]) == (4096, 100, 2, 3600)


def test_a_size_or_time_without_sense_is_refused(invoke: Invoke) -> None:
    for option, told in (("--memory", "a size such as 512M or 4G"), ("--timeout", "a duration such as 90s or 10m")):
        done = invoke("sandbox", "exec", option, "much", "-c", "1")
        assert done.code == 2 and told in done.err
