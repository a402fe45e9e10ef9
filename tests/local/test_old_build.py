"""The agent, a service and a sandbox run on interpreters without os.memfd_create and os.pidfd_open."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.old_build import build_old
from tests.running import MusterCommand

REPOSITORY = Path(__file__).parents[2]
NAMES = "print([hasattr(os, 'memfd_create'), hasattr(os, 'pidfd_open'), hasattr(signal, 'pidfd_send_signal')])"
NONE_OF_THEM = "[False, False, False]"
# What it, its supervisor and its agent run on; what the service and a program in the sandbox say, once by a long job.
DRIVER = f"""
import json, os, signal, sys, urllib.request
def executable_and_parent(pid):
    parent = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1]
    return os.readlink(f"/proc/{{pid}}/exe"), parent
def execute(code):
    body = {{"generated_code": code, "language": "python", "timeout": 20, "std_input": "x" * 100_000}}
    url = os.environ["MUSTER_SERVICE_SANDBOX"] + "/execute"
    asked = urllib.request.Request(url, json.dumps(body).encode(), {{"Content-Type": "application/json"}})
    return json.load(urllib.request.urlopen(asked))
{NAMES}
pid, chain = "self", []
for _ in range(3):
    executable, pid = executable_and_parent(pid)
    chain.append(executable)
print(json.dumps(chain))
print(urllib.request.urlopen(os.environ["MUSTER_SERVICE_WEB"]).read().decode())
for comment in ("", "#" * 100_000):
    print(json.dumps(execute("import os, signal, sys; " + {NAMES!r} + "; print(len(sys.stdin.read())) " + comment)))
"""
SERVICE = f"""
import http.server, io, os, signal, sys
from contextlib import redirect_stdout
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with redirect_stdout(io.StringIO()) as said:
            {NAMES}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said.getvalue().strip().encode())
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def old(muster: MusterCommand, tmp_path: Path) -> MusterCommand:
    """The command itself runs there, too."""
    python = build_old(tmp_path / "old")
    paths = os.pathsep.join([str(REPOSITORY / "src"), sysconfig.get_path("purelib")])
    return replace(muster, python=python, cli=python, env={"PYTHONPATH": paths})


def test_the_agent_a_service_and_a_sandbox_work_without_memfd_and_pidfd(old: MusterCommand) -> None:
    for options in ([], ["-I", "-S"]):  # as a user's program, and as agents and supervisors are started
        argv = [old.python, *options, "-c", f"import os, signal; {NAMES}"]
        assert subprocess.run(argv, capture_output=True, text=True).stdout.strip() == NONE_OF_THEM
    (old.cwd / "driver.py").write_text(DRIVER)
    (old.cwd / "server.py").write_text(SERVICE)
    services = {
        "web": {"command": [old.python, "server.py", "{http}"], "ports": {"http": "auto"}, "ready": {"http": "/"}},
        "sandbox": {"kind": "sandbox", "settings": {"workers_min": 1, "workers_max": 2, "preload": []}},
    }
    job = {"backend": "local", "nodes": 2, "python": old.python, "ray": False, "services": services}
    (old.cwd / "job.yaml").write_text(yaml.safe_dump({**job, "command": [old.python, "driver.py"]}))
    done = old("run", "--file", "job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    names, chain, service, short, long = done.stdout.splitlines()
    assert (names, service) == (NONE_OF_THEM, NONE_OF_THEM)
    assert json.loads(chain) == [old.python] * 3  # the driver, its supervisor, the agent
    for result in (short, long):
        assert json.loads(result)["stdout"] == f"{NONE_OF_THEM}\n100000\n", result
