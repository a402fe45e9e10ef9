"""Services on this machine: the driver waits for them, finds them, and a run without one of them ends by its name."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import yaml
from tests.running import MusterCommand, wait_for

# Serves as a real one does, once the file `go` is there; says which start it is, and ends when told to over HTTP.
SERVER = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        if self.path == "/end":
            os._exit(0)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.environ['MUSTER_PORT_HTTP']} {os.getpid()}".encode())
    def log_message(self, *words):
        pass
print("begins, cycle", os.environ["MUSTER_CYCLE"], flush=True)
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
DUMP = "import json, os; json.dump(dict(os.environ), open(os.environ['MUSTER_OUTPUT_DIR'] + '/env', 'w'))"
WEB = {"command": ["python", "server.py", "{http}"], "ports": {"http": "auto"}, "ready": {"http": "/"}}
WAIT = ["bash", "-c", "echo began; until [ -e stop ]; do sleep 0.1; done"]


def args(muster: MusterCommand, services: dict[str, Any], *options: str, nodes: int = 2, **job: Any) -> list[str]:
    (muster.cwd / "server.py").write_text(SERVER)
    file = muster.cwd / "job.yaml"
    fields = {"backend": "local", "nodes": nodes, "python": muster.python, "ray": False, "stop_grace": 5, **job}
    file.write_text(yaml.safe_dump({**fields, "services": services}))
    return ["run", "--file", str(file), *options]


def run(muster: MusterCommand, services: dict[str, Any], **job: Any) -> subprocess.CompletedProcess[str]:
    return muster(*args(muster, services, **job))


def start(muster: MusterCommand, services: dict[str, Any], *options: str, **job: Any) -> subprocess.Popen[str]:
    return muster.start(*args(muster, services, *options, **job))


def record(muster: MusterCommand, name: str = "web", attempt: int = 0) -> dict[str, Any]:
    path = muster.run_dir() / f"attempt-{attempt}" / "services" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def events(muster: MusterCommand) -> list[dict[str, Any]]:
    lines = (muster.run_dir() / "attempt-0" / "events-0.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "service"]


def ask(url: str, path: str = "/") -> str:
    """The server's answer; empty when it had none."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return str(answer.read().decode())
    except (OSError, urllib.error.URLError, ConnectionError):
        return ""


def seen(muster: MusterCommand, ready: int, **more: Any) -> dict[str, Any] | None:
    found = record(muster) if muster.run_dirs() else {}
    return found if {"ready": ready, **more}.items() <= found.items() else None


# -- the gate -----------------------------------------------------------------------------------------------------


def test_the_driver_waits_until_the_service_is_ready_on_every_node(muster: MusterCommand) -> None:
    web = {**WEB, "command": ["python", "server.py", "{http}", str(muster.cwd / "go")]}
    process = start(muster, {"web": web}, command=["python", "-c", DUMP])
    wait_for(
        "both to begin", lambda: len(list(muster.cwd.glob("muster-runs/*/attempt-0/logs/services/web/*.log"))) == 2
    )
    assert muster.status()["state"] in ("gathering", "starting")
    assert not (muster.run_dir() / "output" / "env").exists()
    (muster.cwd / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    env = json.loads((muster.run_dir() / "output" / "env").read_text())
    urls = env["MUSTER_SERVICE_WEB_URLS"].split(",")
    assert len(set(urls)) == 2 and env["MUSTER_SERVICE_WEB"] == urls[0]
    assert env["MUSTER_SERVICES_DIR"] == str(muster.run_dir() / "attempt-0" / "services")
    assert [event["state"] for event in events(muster)] == ["ready", "ready"]
    assert {event["url"] for event in events(muster)} == set(urls)
    assert "service web is ready: 2 of 2" in (muster.run_dir() / "attempt-0" / "phases.log").read_text()
