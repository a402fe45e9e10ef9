"""A hostile user of the same nodes sees nothing of another user's run, cannot use its ports and cannot block it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.lab.conftest import SlurmCommand
from tests.lab.logins import UserCommand
from tests.running import wait_for

from muster.agent.ray.settings import temp_dir

LAB = {"nodes": 2, "users": ["alice", "mallory"]}
NODES = ("n1", "n2")
SECRET = "s3cret-of-alice-4711"
UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
HOLD = f"echo up; {UNTIL_GO}; echo done"
SANDBOX = {"kind": "sandbox", "settings": {"workers_min": 1, "workers_max": 1, "preload": []}}
# All that the process list shows to any user, and the environment of every process that can be read.
SPY = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/[0-9]*/task/*/cmdline 2>/dev/null | tr '\\0' ' '"
# Connects, says what it was told to, and prints what it hears in two seconds.
CALL = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
peer.sendall(eval(sys.argv[3]))
peer.settimeout(2)
try:
    print(peer.recv(4096))
except OSError as error:
    print(type(error).__name__)
"""
POST = """
import json, sys, urllib.error, urllib.request
body = json.dumps({"generated_code": "print(6 * 7)", "language": "python", "timeout": 5}).encode()
try:
    ask = urllib.request.Request(sys.argv[1] + "/execute", body, {"Content-Type": "application/json"})
    print(urllib.request.urlopen(ask, timeout=20).read())
except urllib.error.HTTPError as error:
    print(error.code)
"""
LOOK_INTO_RAY = """
import os, sys
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=sys.argv[2])
from ray._raylet import GcsClient
try:
    print("nodes:", len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=30)))
except BaseException as error:
    print("refused", type(error).__name__)
"""
RAY_HOLD = """
import os, time, ray
ray.init(log_to_driver=False)
print("gcs at", os.environ["RAY_ADDRESS"], flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
print("works on", ray.get(ray.remote(lambda: 7).remote()), flush=True)
"""


@pytest.fixture
def alice(slurm: SlurmCommand) -> Iterator[UserCommand]:
    yield UserCommand(slurm.lab, "alice")


@pytest.fixture
def mallory(slurm: SlurmCommand) -> Iterator[UserCommand]:
    command = UserCommand(slurm.lab, "mallory")
    yield command
    for node in NODES:
        command.on_node(node, "sh", "-c", "rm -rf /tmp/muster-* 2>/dev/null")


def go(alice: UserCommand) -> None:
    alice.write("go", "")


def test_a_run_of_another_user_cannot_be_read_and_its_owner_is_named(alice: UserCommand, mallory: UserCommand) -> None:
    common = alice.lab.plan.shared_dir / "common-runs"
    common.mkdir()
    common.chmod(0o1777)
    args = ("--nodes", "1", "--no-ray", "--python", alice.python, "--runs-dir", str(common), "--", "true")
    assert alice("run", *args).returncode == 0
    (run,) = common.iterdir()
    for command, name in (("status", str(run)), ("logs", run.name), ("stop", str(run)), ("du", run.name)):
        done = mallory(command, name, "--runs-dir", str(common))
        assert done.returncode == 1, (command, done)
        assert done.stderr == f"muster: error: permission denied: {run} belongs to alice, and runs are private\n"
    listed = mallory("runs", "--runs-dir", str(common))
    assert (listed.returncode, run.name in listed.stdout) == (0, False)
    assert listed.stderr == "muster: 1 more in the runs directory cannot be read: runs are private\n"
    for node in NODES:
        assert mallory.on_node(node, "ls", str(run)).returncode == 2
    closed = mallory("runs", "--runs-dir", str(alice.cwd))
    assert (closed.returncode, closed.stderr.count("\n")) == (1, 1) and "cannot be read" in closed.stderr
    assert mallory.run("--runs-dir", str(common), "--", "true", nodes=1).returncode == 0


def test_no_secret_is_in_the_process_list_or_a_readable_environment(alice: UserCommand, mallory: UserCommand) -> None:
    web = {"command": ["sleep", "600"], "env": {"PASSWORD": SECRET}}
    job = {"nodes": 2, "ray": False, "command": ["sh", "-c", HOLD], "env": {"HF_TOKEN": SECRET}}
    services = {"web": web, "sandbox": SANDBOX}
    alice.write("job.yaml", yaml.safe_dump({**job, "services": services, "python": alice.python}))
    with alice.running("run", "--file", "job.yaml", until="up") as run:
        secrets = [SECRET, (run / "token").read_text().strip(), (run / "ray-token").read_text().strip()]
        seen = {node: mallory.on_node(node, "sh", "-c", SPY).stdout for node in NODES}
        login = mallory.program("sh", "-c", SPY).communicate(timeout=60)[0]
        assert all("agent.pyz" in text for text in seen.values()), "the process list is visible"
        assert [secret for secret in secrets for text in (*seen.values(), login) if secret in text] == []
        own = alice.on_node("n1", "sh", "-c", SPY).stdout
        assert SECRET in own, "this would have found it"
        go(alice)


def test_the_control_channel_refuses_callers_without_the_token(alice: UserCommand, mallory: UserCommand) -> None:
    mallory.write("call.py", CALL)
    with alice.running(*alice.run_args("--", "sh", "-c", HOLD, nodes=2), until="up") as run:
        lead = json.loads((run / "attempt-0" / "lead-0.json").read_text())
        host, port = lead["addresses"][0], str(lead["port"])
        for words in (b"", b"\x00" * 64, b"GET / HTTP/1.0\r\n\r\n", b'{"type": "hello", "rank": 1}\n'):
            done = mallory.on_node("n2", mallory.python, str(mallory.cwd / "call.py"), host, port, repr(words))
            assert done.returncode == 0, done.stderr
        go(alice)
        wait_for("the run's end", lambda: alice.status()["state"] == "succeeded")
    assert [node["state"] for node in alice.status()["nodes"]] == ["gone", "gone"]


def test_a_sandbox_of_another_node_refuses_callers_without_the_token(alice: UserCommand, mallory: UserCommand) -> None:
    mallory.write("post.py", POST)
    job = {"nodes": 2, "ray": False, "command": ["sh", "-c", HOLD], "services": {"sandbox": SANDBOX}}
    alice.write("job.yaml", yaml.safe_dump({**job, "python": alice.python}))
    with alice.running("run", "--file", "job.yaml", until="up"):
        pattern = "/tmp/muster-*/*.service-sandbox/members.json"
        members = json.loads(alice.on_node("n1", "sh", "-c", f"cat {pattern}").stdout)["endpoints"]
        assert len(members) == 2
        assert mallory.on_node("n1", "sh", "-c", f"cat {pattern}").returncode != 0
        post = (mallory.python, str(mallory.cwd / "post.py"))
        assert [mallory.on_node("n1", *post, endpoint).stdout for endpoint in members] == ["401\n", "401\n"]
        go(alice)


def test_the_web_page_refuses_callers_without_the_token(alice: UserCommand) -> None:
    ui = alice.start("ui", "--port", "0")
    try:
        assert ui.stdout is not None
        url = next(line.strip() for line in ui.stdout if "/enter?token=" in line)
        origin = url.partition("/enter")[0]
        for path in ("/", "/api/runs", "/metrics", "/enter?token=" + "0" * 43):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(origin + path, timeout=60)
            assert refused.value.code in (401, 403), path
    finally:
        ui.terminate()
        ui.communicate(timeout=60)


def test_occupied_names_in_tmp_do_not_block_a_run(alice: UserCommand, mallory: UserCommand) -> None:
    uid = alice.lab.plan.user("alice").uid
    alice.write("lease.py", "from muster.ports.file_leases import lease_port; print(lease_port())")
    gang = ("--procs-per-node", "1", "--setup", UNTIL_GO)
    process = alice.start(*alice.run_args(*gang, "--", "sh", "-c", "echo $RANK; python lease.py", nodes=2))
    alice.wait_for_set_up(2)
    parent = os.path.dirname(temp_dir(alice.run_dir().name, 0, 0, 0))
    for node, squat in zip(NODES, ("mkdir -m 777 {0}", "ln -s /etc {0}"), strict=True):
        for name in (parent, f"/tmp/muster-ports-{uid}"):
            done = mallory.on_node(node, "sh", "-c", squat.format(name))
            assert done.returncode == 0, done.stderr
    go(alice)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    logs = [alice.rank_output(rank).read_text() for rank in (0, 1)]
    assert [log.split()[0] for log in logs] == ["0", "1"] and all(log.split()[1].isdecimal() for log in logs), logs
    for node in NODES:
        found = alice.on_node(node, "find", "/tmp", "-maxdepth", "1", "-user", "alice").stdout.split()
        assert [Path(path).name.startswith(f"muster-ports-{uid}-") for path in found] == [True], found
        alice.on_node(node, "rm", "-r", *found)


def ask_ray(mallory: UserCommand, address: str, token: str) -> str:
    """Return what a program of another user on the same node makes of the node table."""
    argv = (mallory.python, str(mallory.cwd / "look.py"), address, token)
    return mallory.on_node("n1", *argv).stdout


@pytest.mark.ray
def test_ray_refuses_callers_without_the_token(alice: UserCommand, mallory: UserCommand) -> None:
    alice.write("hold.py", RAY_HOLD)
    mallory.write("look.py", LOOK_INTO_RAY)
    limits = ("--cpus-per-node", "1", "--object-store-memory", "100M")
    args = alice.run_args(*limits, "--", "python", "hold.py", nodes=1, ray=True)
    with alice.running(*args, until="gcs at") as run:
        log = (run / "attempt-0" / "logs" / "driver.log").read_text()
        address = next(line.split()[2] for line in log.splitlines() if line.startswith("gcs at"))
        token = (run / "ray-token").read_text().strip()
        assert ask_ray(mallory, address, token) == "nodes: 1\n", "with a stolen token it works"
        assert ask_ray(mallory, address, "0" * len(token)).startswith("refused")
        go(alice)
        wait_for("the end: Ray's own end may crash on a signal", (run / "attempt-0" / "outcome").exists)
        assert "works on 7" in (run / "attempt-0" / "logs" / "driver.log").read_text()
