"""The spare of a killed node starts its services on a real Slurm, and the endpoints are updated."""

from __future__ import annotations

import json
from typing import Any

import yaml
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

LAB = {"nodes": 4}
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.uname().nodename.encode())
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
# Follows the record until there are three again, one of them another, and asks each.
FOLLOW = """
import json, os, time, urllib.request
def look():
    with open(os.environ["MUSTER_SERVICES_DIR"] + "/web.json") as file:
        return json.load(file)
print("at first", os.environ["MUSTER_SERVICE_WEB_URLS"], flush=True)
first = look()["urls"]
while look()["ready"] != 3 or look()["urls"] == first:
    time.sleep(0.1)
print("now", *[urllib.request.urlopen(url, timeout=10).read().decode() for url in look()["urls"]], flush=True)
"""
JOB = {
    "nodes": 3,
    "spares": 1,
    "on_node_loss": "replace",
    "ray": False,
    "command": ["python", "follow.py"],
    "services": {
        "web": {"command": ["python", "server.py", "{http}"], "ports": {"http": "auto"}, "ready": {"http": "/"}},
        "store": {"command": ["sleep", "600"], "scope": "any"},
    },
}


def record(slurm: SlurmCommand, name: str = "web") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((slurm.run_dir() / "attempt-0" / "services" / f"{name}.json").read_text())
    return found


def test_a_spare_starts_the_services_of_the_node_it_replaces_and_the_endpoints_follow(slurm: SlurmCommand) -> None:
    (slurm.cwd / "server.py").write_text(SERVER)
    (slurm.cwd / "follow.py").write_text(FOLLOW)
    (slurm.cwd / "job.yaml").write_text(yaml.safe_dump({**JOB, "python": slurm.python}, sort_keys=False))
    process = slurm.start("run", "--file", "job.yaml")
    run = slurm.wait_for_driver("at first")
    hosts = (run / "attempt-0" / "hosts").read_text().split()
    assert [one["host"] for one in record(slurm)["instances"]] == hosts[:3]
    assert [one["host"] for one in record(slurm, "store")["instances"]] == [hosts[2]]
    victim = hosts[2]
    slurm.lab.kill_node(victim)
    try:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        expected = [hosts[0], hosts[1], hosts[3]]
        assert out.splitlines()[-1].split() == ["now", *expected]
        events = [json.loads(line) for line in (run / "attempt-0" / "events-0.jsonl").read_text().splitlines()]
        ready = [(one["service"], one["host"]) for one in events if one.get("state") == "ready" and "service" in one]
        assert sorted(ready) == sorted([*(("web", host) for host in hosts), ("store", hosts[2]), ("store", hosts[3])])
        wait_for("the log of the spare's", lambda: (run / f"attempt-0/logs/services/web/{hosts[3]}.log").exists())
    finally:
        slurm.lab.heal(victim)


# Runs a program on its own node's sandbox, and asks what the others' endpoints make of somebody without a token.
EXECUTE = """
import glob, json, os, time, urllib.error, urllib.request
url = os.environ["MUSTER_SERVICE_SANDBOX"]
body = {"generated_code": "print(6 * 7)", "language": "python", "timeout": 30}
ask = urllib.request.Request(url + "/execute", json.dumps(body).encode(), {"Content-Type": "application/json"})
print("ran", json.load(urllib.request.urlopen(ask))["stdout"].strip(), flush=True)
members = {"endpoints": []}
while len(members["endpoints"]) < 3:
    time.sleep(0.1)
    members = json.load(open(glob.glob("/tmp/muster-*/*.service-sandbox/members.json")[0]))
codes = []
for endpoint in members["endpoints"]:
    ask = urllib.request.Request(endpoint + "/execute", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        codes.append(urllib.request.urlopen(ask).status)
    except urllib.error.HTTPError as error:
        codes.append(error.code)
print("others", len(set(members["endpoints"])), codes, flush=True)
"""


def test_a_sandbox_has_the_same_port_on_all_nodes_and_they_know_each_other(slurm: SlurmCommand) -> None:
    (slurm.cwd / "driver.py").write_text(EXECUTE)
    settings = {"workers_min": 1, "workers_max": 2, "preload": []}
    job = {
        "nodes": 3,
        "ray": False,
        "python": slurm.python,
        "command": ["python", "driver.py"],
        "services": {"sandbox": {"kind": "sandbox", "settings": settings}},
    }
    (slurm.cwd / "job.yaml").write_text(yaml.safe_dump(job))
    done = slurm("run", "--file", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ran 42", "others 3 [401, 401, 401]"]
    events = [json.loads(line) for line in (slurm.run_dir() / "attempt-0/events-0.jsonl").read_text().splitlines()]
    (url,) = {one["url"] for one in events if one["event"] == "service"}
    assert url.startswith("http://127.0.0.1:")
