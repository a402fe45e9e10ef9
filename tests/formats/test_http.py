"""What HTTP clients rely on: paths, status codes, headers and keys of the sandbox and of `muster ui`."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.formats.shape import Golden, shape
from tests.running import MusterCommand
from tests.sandbox.serving import Served
from tests.views.synthetic import large_run

Recorded = Callable[[str], Golden]
JSON = {"Content-Type": "application/json"}
PRINT = {"generated_code": "print(6 * 7)", "language": "python", "timeout": 30}

# What is asked, in this order: name, method, path, body, further headers.
SANDBOX_REQUESTS: list[tuple[str, str, str, Any, dict[str, str]]] = [
    ("program", "POST", "/execute", PRINT, {}),
    ("program that fails", "POST", "/execute", {**PRINT, "generated_code": "1/0"}, {}),
    ("program that is too slow", "POST", "/execute", {**PRINT, "generated_code": "while 1: pass", "timeout": 1}, {}),
    ("shell script", "POST", "/execute", {**PRINT, "generated_code": "echo 42", "language": "shell"}, {}),
    ("cell of a session", "POST", "/execute", {**PRINT, "language": "ipython"}, {"X-Session-ID": "a"}),
    ("unknown language", "POST", "/execute", {**PRINT, "language": "cobol"}, {}),
    ("not JSON", "POST", "/execute", b"{", {}),
    ("SandboxFusion program", "POST", "/run_code", {"code": "print(1)", "language": "python"}, {}),
    ("sessions", "GET", "/sessions", None, {}),
    ("delete a session", "DELETE", "/sessions/a", None, {}),
    ("delete an unknown session", "DELETE", "/sessions/b", None, {}),
    ("delete a workspace", "DELETE", "/workspaces/w", None, {}),
    ("health", "GET", "/health", None, {}),
    ("load", "GET", "/load", None, {}),
    ("wrong method", "GET", "/execute", None, {}),
    ("unknown path", "GET", "/nothing", None, {}),
]
LOG = "attempt-0/logs/driver.log"
PLAIN_HEADERS = {"Date", "Connection", "Content-Length", "Keep-Alive", "Server", "Transfer-Encoding"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served({})
    yield served
    served.clean()


def test_the_sandbox_answers_as_recorded(served: Served, golden: Recorded) -> None:
    answers: dict[str, Any] = {}
    for name, method, path, body, headers in SANDBOX_REQUESTS:
        answer = served.ask(method, path, body, {**JSON, **headers} if body is not None else headers)
        own = {header: "string" for header in answer.headers if header not in PLAIN_HEADERS}
        answers[name] = {"status": str(answer.status), "headers": own, "body": shape(dict(answer))}
    golden("sandbox-http").admits(answers)


def test_a_batch_is_answered_as_recorded(served: Served, golden: Recorded) -> None:
    answer = served.ask("POST", "/batch", {"requests": [PRINT, PRINT]}, JSON)
    assert answer.status == 200, answer
    lines = [json.loads(line) for line in answer["text"].splitlines() if line]
    golden("sandbox-batch").admits({"lines": shape(lines)})


def test_the_sandbox_s_metrics_have_the_recorded_names(served: Served, golden: Recorded) -> None:
    text = served.ask("GET", "/metrics")["text"]
    names = sorted(set(re.findall(r"^# TYPE (\S+ \S+)$", text, re.MULTILINE)))
    assert names
    golden("sandbox-metrics").admits(dict.fromkeys(names, "present"))


def fetch(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of the answer to a GET request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_the_user_interface_answers_as_recorded(muster: MusterCommand, tmp_path: Path, golden: Recorded) -> None:
    large_run(tmp_path / "runs" / "train", nodes=8)
    process = muster.start("ui", "--runs-dir", "runs")
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        origin = link.partition("/enter")[0]
        status, headers, _ = fetch(link)
        cookie = headers["Set-Cookie"].partition(";")[0]
        answers: dict[str, Any] = {f"enter {status}": {"cookie": re.sub(r"\d+=.*", "PORT", cookie)}}
        for path in ("/api/runs", "/api/runs/train/logs", f"/api/runs/train/log?name={LOG}"):
            status, _, text = fetch(origin + path, Cookie=cookie)
            answers[f"{path} {status}"] = shape(json.loads(text)) if status == 200 else text
        model = json.loads(fetch(f"{origin}/api/runs/train", Cookie=cookie)[2])
        answers["/api/runs/train"] = dict.fromkeys(model, "present")  # its rows are our own page's business
        answers["without a cookie"] = fetch(f"{origin}/api/runs")[0]
        answers["unknown run"] = fetch(f"{origin}/api/runs/none", Cookie=cookie)[0]
        metrics = fetch(f"{origin}/metrics", Cookie=cookie)[2]
        answers["metrics"] = dict.fromkeys(re.findall(r"^# TYPE (\S+ \S+)$", metrics, re.MULTILINE), "present")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    golden("ui-http").admits(answers)
