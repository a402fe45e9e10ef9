"""Agents, services, sandbox and spares run on nodes with other Python versions than the command's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.interpreters import VERSIONS, interpreter
from tests.running import MusterCommand, wait_for

pytestmark = pytest.mark.interpreters

REPOSITORY = Path(__file__).parents[2]
# The tests of what runs on nodes: processes and scopes, the control channel and its stalls, the guardian, the sandbox.
NODE_TESTS = ["tests/process", "tests/agent/control", "tests/agent/test_guardian.py", "tests/sandbox/test_run_once.py"]
NODE_TESTS += ["tests/sandbox/engine/test_sessions.py", "tests/sandbox/jail"]
TEST_PACKAGES = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis"]
VERSION = "'%d.%d' % sys.version_info[:2]"
# Rank 0 writes the version of the agent's interpreter, its own, that of the service, and of a session in the sandbox.
RANK = f"""
import os, subprocess, sys, urllib.request
from muster.sandbox import Client
if os.environ["RANK"] != "0":
    sys.exit()
def parent(pid):
    return open("/proc/%s/stat" % pid).read().rpartition(")")[2].split()[1]
agent = os.readlink("/proc/%s/exe" % parent(parent("self")))
print(subprocess.check_output([agent, "-c", "import sys; print({VERSION})"], text=True).strip())
print({VERSION})
print(urllib.request.urlopen(os.environ["MUSTER_SERVICE_WEB"]).read().decode())
with Client() as box:
    first = box.execute("import sys; x = {VERSION}", session="s")
    print(box.execute("print(x)", session="s").stdout.strip() or first)
    print(box.execute("print(sum(range(10)))", language="python").stdout.strip())
"""
SERVICE = f"""
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(({VERSION}).encode())
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
WAIT_ONCE = 'echo "cycle $MUSTER_CYCLE"; [ $MUSTER_CYCLE != 0 ] || sleep 1000'


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if interpreter(found) is None:
        pytest.skip(f"no Python {found} here")
    return found


@pytest.fixture
def there(muster: MusterCommand, version: str) -> MusterCommand:
    """The command on this interpreter, with nodes on the other one."""
    return replace(muster, python=str(interpreter(version)))


def test_agents_a_gang_a_service_and_a_sandbox_session_run_there(there: MusterCommand, version: str) -> None:
    (there.cwd / "rank.py").write_text(RANK)
    (there.cwd / "server.py").write_text(SERVICE)
    services = {
        "web": {"command": [there.python, "server.py", "{http}"], "ports": {"http": "auto"}, "ready": {"http": "/"}},
        "sandbox": {"kind": "sandbox", "settings": {"workers_min": 1, "workers_max": 2, "preload": []}},
    }
    job = {"backend": "local", "nodes": 2, "python": there.python, "procs_per_node": 1, "ray": False}
    file = {**job, "services": services, "command": [there.python, "rank.py"]}
    (there.cwd / "job.yaml").write_text(yaml.safe_dump(file))
    done = there("run", "--file", "job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [version, version, version, version, "45"]


def test_a_spare_replaces_a_killed_node_and_nothing_of_it_is_left(there: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--procs-per-node", "1")
    process = there.start(*there.local_args(*options, "--", "bash", "-c", WAIT_ONCE))
    log = "attempt-0/logs/cycle-0/rank-0001.log"
    wait_for("the second rank", lambda: there.run_dirs() and (there.run_dir() / log).is_file())
    wait_for("its output", lambda: "cycle 0" in (there.run_dir() / log).read_text())
    os.kill(there.agent_pid(1), signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "cycle 1" in out
    members = [cycle["members"] for cycle in there.status()["cycles"]]
    assert members == [["node-0", "node-1"], ["node-0", "node-2"]]


def test_the_tests_of_what_runs_on_nodes_pass_there(version: str, tmp_path: Path) -> None:
    """They are run by that interpreter, with the packages that tests need and without those of the command."""
    program, venv = str(interpreter(version)), REPOSITORY / ".venv" / "interpreters" / f"tests-{version}"
    python = venv / "bin" / "python"
    if not (venv / ".complete").exists():
        subprocess.run([program, "-m", "venv", "--without-pip", "--clear", venv], check=True)
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *TEST_PACKAGES]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"the packages for tests cannot be installed for Python {version}: {done.stderr[-300:]}")
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "muster.pth").write_text(f"{REPOSITORY / 'src'}\n")  # also for the processes that tests start
        (venv / ".complete").touch()
    argv = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "tests")]
    done = subprocess.run([*argv, *NODE_TESTS], cwd=REPOSITORY, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    said = json.dumps(done.stdout.splitlines()[-1:])
    assert " passed" in said, said
