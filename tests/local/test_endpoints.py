"""A job reaches all instances of a service under one URL on every node, with the run's token."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import yaml
from tests.running import MusterCommand, wait_for

# An unmodified server: HTTP/1.0, and responses that end with the connection.
ENGINE = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"weights_version": 4}' if self.path == "/health" else sys.argv[1].encode())
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
# Each rank of the gang asks the endpoint of its node.
DRIVER = """
import json, os, time, urllib.error, urllib.request
def ask(path, key=os.environ["MUSTER_ENDPOINT_TOKEN"]):
    headers = {"Authorization": "Bearer " + key, "X-Muster-Weights-Version": ">=4"}
    request = urllib.request.Request(os.environ["MUSTER_ENDPOINT_ENGINE"] + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
found = {"url": os.environ["MUSTER_ENDPOINT_ENGINE"], "refused": ask("/", "wrong")[0]}
found["answers"] = [ask("/") for _ in range(10)]
if os.environ["RANK"] == "0":
    while not os.path.exists(os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "1")):
        time.sleep(0.05)  # until the other rank has had its answers from all engines
    found["lost"] = ask("/die")
    found["later"] = [ask("/") for _ in range(10)]
with open(os.path.join(os.environ["MUSTER_OUTPUT_DIR"], os.environ["RANK"]), "w") as file:
    json.dump(found, file)
while not os.path.exists("stop"):
    time.sleep(0.05)
"""
SERVICE = {
    "command": ["python", "engine.py", "{http}"],
    "ports": {"http": "auto"},
    "ready": {"http": "/health"},
    "endpoint": {"interval": "1s"},
}


def test_every_node_reaches_all_instances_under_one_url(muster: MusterCommand) -> None:
    (muster.cwd / "engine.py").write_text(ENGINE)
    (muster.cwd / "driver.py").write_text(DRIVER)
    job = {"backend": "local", "nodes": 2, "procs_per_node": 1, "python": muster.python, "ray": False}
    job |= {"command": ["python", "driver.py"], "services": {"engine": SERVICE}}
    file = muster.cwd / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    process = muster.start("run", "--file", str(file))
    outputs = [muster.cwd / "muster-runs" / "*" / "output" / str(rank) for rank in range(2)]

    def results() -> list[dict[str, Any]] | None:
        found = [next(iter(muster.cwd.glob(str(path.relative_to(muster.cwd)))), None) for path in outputs]
        texts = [path.read_text() if path is not None else "" for path in found]
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        return [json.loads(text) for text in texts] if all(text.endswith("}") for text in texts) else None

    ranks = wait_for("both ranks", results)
    status = wait_for("the load", lambda: loads(muster))
    (muster.cwd / "stop").touch()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err

    urls = {one["url"] for one in status["engine"]["instances"]}
    ports = {url.rpartition(":")[2] for url in urls}
    for rank in ranks:
        assert rank["refused"] == 401
        assert Counter(code for code, _ in rank["answers"]) == {200: 10}
        assert {text for _, text in rank["answers"]} == ports  # a node's proxy serves the engines of all nodes
    assert len({rank["url"] for rank in ranks}) == 2 and not urls & {rank["url"] for rank in ranks}
    code, text = ranks[0]["lost"]
    assert code == 502 and "was lost while it processed this request" in json.loads(text)["error"]["message"]
    assert Counter(code for code, _ in ranks[0]["later"]) == {200: 10}
    proxies = status["engine-endpoint"]
    assert (proxies["kind"], proxies["of"], proxies["ready"]) == ("endpoint", "engine", 2)
    assert proxies["load"]["failed"] == 1
    assert [(one["proxies"], one["weights_versions"]) for one in proxies["load"]["replicas"]] == [(2, ["4"])] * 2
    assert not any(
        "MUSTER_ENDPOINT_TOKEN" in path.read_text()
        for path in muster.run_dir().glob("*.json")
        if path.name != "env.json"
    )


def loads(muster: MusterCommand) -> dict[str, Any] | None:
    """Return the services of the status once both proxies have reported all requests."""
    services: dict[str, Any] = muster.status()["services"]
    return services if services["engine-endpoint"]["load"]["requests"] == 31 else None
