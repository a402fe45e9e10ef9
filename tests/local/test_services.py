"""The driver waits for services and finds them; a run whose service fails ends with the name of the service."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.running import MusterCommand, wait_for

from muster.agent.ray.settings import temp_dir

REPOSITORY = Path(__file__).parents[2]
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
        self.wfile.write(f"{sys.argv[1]} {os.getpid()}".encode())
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
    file.write_text(yaml.safe_dump({**fields, "services": services}, sort_keys=False))
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
    try:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
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
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    env = json.loads((muster.run_dir() / "output" / "env").read_text())
    urls = env["MUSTER_SERVICE_WEB_URLS"].split(",")
    assert len(set(urls)) == 2 and env["MUSTER_SERVICE_WEB"] == urls[0]
    assert env["MUSTER_SERVICES_DIR"] == str(muster.run_dir() / "attempt-0" / "services")
    assert [event["state"] for event in events(muster)] == ["ready", "ready"]
    assert {event["url"] for event in events(muster)} == set(urls)
    assert "service web is ready: 2 of 2" in (muster.run_dir() / "attempt-0" / "phases.log").read_text()


def test_services_of_all_scopes_are_where_they_should_be(muster: MusterCommand) -> None:
    web = {**WEB, "gate": True}
    scopes: dict[str, Any] = {"every": "all", "at-head": "head", "one": "any", "two": 2}
    services = {name: {**web, "scope": scope} for name, scope in scopes.items()}
    process = start(muster, services, nodes=3, command=WAIT)
    muster.wait_for_driver("began")
    found = wait_for("the status", lambda: muster.status()["services"] if muster.status()["services"] else None)
    ranks = {name: [one["rank"] for one in entry["instances"]] for name, entry in found.items()}
    assert ranks == {"every": [0, 1, 2], "at-head": [0], "one": [2], "two": [1, 2]}
    assert [(entry["wanted"], entry["ready"], entry["gate"]) for entry in found.values()] == [
        (3, 3, True),
        (1, 1, True),
        (1, 1, True),
        (2, 2, True),
    ]
    url = found["one"]["instances"][0]["url"]
    assert ask(url).startswith(url.rpartition(":")[2])
    assert {one["host"] for one in record(muster, "two")["instances"]} == {"node-1", "node-2"}
    assert record(muster, "two")["urls"] == [one["url"] for one in found["two"]["instances"]]
    (muster.cwd / "stop").touch()
    assert process.wait(180) == 0
    ended = muster.status()["services"]["every"]
    assert (ended["ready"], ended["instances"], record(muster, "every")["urls"]) == (0, [], [])


def test_a_service_may_show_in_many_ways_that_it_is_ready(muster: MusterCommand) -> None:
    later = "sleep 0.3; touch {dir}/up; sleep 600"
    services: dict[str, Any] = {
        "log": {"command": "echo warming; sleep 0.3; echo now serving; sleep 600", "ready": {"log": "now ser[v]ing"}},
        "file": {"command": later.replace("{dir}", "$MUSTER_SERVICE_DIR"), "ready": {"file": "up"}},
        "command": {"command": later, "ready": {"command": "[ -e {dir}/up ]"}},
        "tcp": {"command": "python server.py {port}", "ports": {"main": "auto"}, "ready": {"tcp": "main"}},
        "port": {"command": "python server.py {http}", "ports": {"http": "auto"}},
        "none": {"command": "sleep 600"},
    }
    done = run(muster, services, nodes=1, command=["true"])
    assert done.returncode == 0, done.stderr
    assert {event["service"]: event["state"] for event in events(muster)} == dict.fromkeys(services, "ready")


# -- failures -----------------------------------------------------------------------------------------------------


def test_one_that_dies_before_it_is_ready_fails_the_run_at_once_with_its_last_words(
    muster: MusterCommand,
) -> None:
    command = ["bash", "-c", "echo what went wrong; [ $MUSTER_PORT_HTTP = none ] || exit 7"]
    done = run(muster, {"web": {**WEB, "command": command, "scope": "any"}}, command=["touch", "driven"])
    assert done.returncode == 125
    assert "service web on node-1 exited with 7 before it was ready" in done.stderr
    assert "what went wrong" in done.stderr
    assert not (muster.cwd / "driven").exists()
    error = muster.status()["error"]
    assert (error["host"], error["phase"], error["log_tail"]) == ("node-1", "service", ["what went wrong"])
    assert [event["state"] for event in events(muster)] == ["failed"]


def test_of_two_that_are_late_the_one_with_the_shorter_deadline_is_named(muster: MusterCommand) -> None:
    never = {"command": ["sleep", "600"], "ready": {"file": "never"}}
    services = {"slow": {**never, "deadline": 4}, "quick": {**never, "deadline": 2, "scope": "head"}}
    done = run(muster, services, command=["true"])
    assert done.returncode == 125
    assert "service quick was not ready on node-0 within 2 s (its deadline): " in done.stderr
    assert "never does not exist" in done.stderr


def test_a_command_that_is_not_there_is_told(muster: MusterCommand) -> None:
    done = run(muster, {"web": {"command": ["no-such-program"]}}, nodes=1, command=["true"])
    assert done.returncode == 125
    assert "service web on node-0 could not be started" in done.stderr and "no-such-program" in done.stderr


def test_a_fixed_port_that_is_taken_is_named(muster: MusterCommand) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(muster, {"web": {**WEB, "ports": {"http": port}}}, nodes=1, command=["true"])
    assert done.returncode == 125
    assert f"service web on node-0 port {port} is taken on this host" in done.stderr


# A thief (this test) takes the port that the service was given, before the service binds it.
ROBBED = """
import os, sys, time
if not os.path.exists("port"):
    open("port.new", "w").write(sys.argv[1])
    os.rename("port.new", "port")
    while not os.path.exists("stolen"):
        time.sleep(0.05)
sys.argv = ["server.py", sys.argv[1]]
exec(open("server.py").read())
"""


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(muster: MusterCommand) -> None:
    (muster.cwd / "robbed.py").write_text(ROBBED)
    process = start(muster, {"web": {**WEB, "command": ["python", "robbed.py", "{http}"]}}, nodes=1, command=["true"])
    port = int(wait_for("the port", lambda: (muster.cwd / "port").exists() and (muster.cwd / "port").read_text()))
    with socket.create_server(("", port)):
        (muster.cwd / "stolen").touch()
        _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    (ready,) = events(muster)
    assert ready["state"] == "ready" and not ready["url"].endswith(f":{port}")


# -- restarts -----------------------------------------------------------------------------------------------------


def test_one_that_fails_is_started_again_until_its_restarts_are_used_up(muster: MusterCommand) -> None:
    process = start(muster, {"web": {**WEB, "max_restarts": 1}}, nodes=1, command=WAIT)
    muster.wait_for_driver("began")
    url = record(muster)["urls"][0]
    first = ask(url)
    ask(url, "/die")
    wait_for("it to be back", lambda: seen(muster, 1) and ask(url) not in ("", first))
    assert muster.status()["services"]["web"]["instances"][0]["restarts"] == 1
    assert record(muster)["urls"] == [url]  # clients find it where it was
    ask(url, "/die")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "service web on node-0 exited with 3, and may not be started again (max_restarts: 1)" in err
    assert [event["state"] for event in events(muster)] == ["ready", "restarting", "ready", "failed"]


def test_one_that_ends_well_is_left_alone_unless_it_is_always_wanted(muster: MusterCommand) -> None:
    services = {"web": {**WEB, "restart": "never"}, "more": {**WEB, "restart": "always"}}
    process = start(muster, services, nodes=1, command=WAIT)
    muster.wait_for_driver("began")
    for name in services:
        ask(record(muster, name)["urls"][0], "/end")
    wait_for("one to be back", lambda: record(muster, "more")["instances"][0]["restarts"] == 1)
    wait_for("it to be ready", lambda: record(muster, "more")["ready"] == 1)
    wait_for("the other's end", lambda: record(muster)["instances"][0]["state"] == "ended")
    assert record(muster)["urls"] == []
    (muster.cwd / "stop").touch()
    assert process.wait(180) == 0


def test_a_cycle_ends_its_services_and_the_next_one_starts_them_again(muster: MusterCommand) -> None:
    driver = ["bash", "-c", "echo cycle $MUSTER_CYCLE $MUSTER_SERVICE_WEB_URLS; [ $MUSTER_CYCLE != 0 ] || sleep 600"]
    process = start(muster, {"web": WEB}, command=driver, spares=1, on_node_loss="restart")
    muster.wait_for_driver("cycle 0")
    before = wait_for("the record", lambda: seen(muster, 2, cycle=0))
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    first, second = [line.split()[2] for line in out.splitlines() if line.startswith("cycle ")]
    assert first.split(",") == before["urls"] and second.split(",")[1] not in first
    ready = [(event["cycle"], event["host"]) for event in events(muster) if event["state"] == "ready"]
    assert sorted(ready) == [(0, "node-0"), (0, "node-1"), (1, "node-0"), (1, "node-2")]
    logs = muster.run_dir() / "attempt-0" / "logs"
    assert (logs / "cycle-1" / "services" / "web" / "node-2.log").read_text() == "begins, cycle 1\n"
    assert (logs / "services" / "web" / "node-1.log").read_text() == "begins, cycle 0\n"


def test_one_that_is_not_to_be_started_again_ends_the_run_whatever_could_be_mended(muster: MusterCommand) -> None:
    web = {**WEB, "restart": "never"}
    process = start(muster, {"web": web}, command=WAIT, spares=1, on_node_loss="restart")
    muster.wait_for_driver("began")
    urls = record(muster)["urls"]
    found = muster("exec", "--node", "1", "--", "bash", "-c", "echo $MUSTER_SERVICE_WEB")  # a session finds its node's
    assert found.stdout.strip() == urls[1], found.stderr
    ask(urls[1], "/die")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "service web on node-1 exited with 3, and may not be started again (restart: never)" in err


def test_a_run_that_is_stopped_while_services_start_leaves_nothing(muster: MusterCommand) -> None:
    process = start(muster, {"web": {"command": ["sleep", "600"], "ready": {"file": "never"}}}, command=WAIT)
    logs = "muster-runs/*/attempt-0/logs/services/web/*.log"
    wait_for("both to begin", lambda: len(list(muster.cwd.glob(logs))) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err


# -- what is given ------------------------------------------------------------------------------------------------


def test_a_gang_finds_the_service_of_each_node(muster: MusterCommand) -> None:
    say = "echo $MUSTER_SERVICE_WEB > $MUSTER_OUTPUT_DIR/$RANK; echo $MUSTER_SERVICE_WEB_URLS"
    done = run(muster, {"web": WEB}, command=["bash", "-c", say], procs_per_node=1)
    assert done.returncode == 0, done.stderr
    own = [(muster.run_dir() / "output" / str(rank)).read_text().strip() for rank in range(2)]
    assert done.stdout.strip().split(",") == own and own[0] != own[1]


def test_a_service_gets_what_it_is_meant_to_get(muster: MusterCommand) -> None:
    dump = f"{DUMP.replace('/env', '/service')}; import time; open('{{dir}}/up', 'w'); time.sleep(600)"
    service = {
        "command": ["python", "-c", dump],
        "ready": {"file": "up"},
        "ports": {"main": "auto"},
        "env": {"API_TOKEN": "sesame-open", "WHERE": "{address}:{main}"},
        "env_passthrough": ["WANTED_*"],
    }
    env = {"WANTED_ONE": "1", "OTHER": "2"}
    done = run(muster, {"web": service}, nodes=1, command=["true"], env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads((muster.run_dir() / "output" / "service").read_text())
    assert (found["WANTED_ONE"], found["API_TOKEN"], found["MUSTER_CYCLE"]) == ("1", "sesame-open", "0")
    assert "OTHER" not in found and "PATH" in found
    assert found["WHERE"] == f"127.0.0.1:{found['MUSTER_PORT_MAIN']}"
    kept = muster.run_dir() / "services.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    held = subprocess.run(["grep", "-rl", "sesame-open", str(muster.run_dir())], capture_output=True, text=True)
    assert {Path(path).name for path in held.stdout.split()} == {"services.json", "service"}


def test_a_record_of_an_earlier_attempt_is_never_read(muster: MusterCommand) -> None:
    """A job that is requeued has its services anew: what the first attempt left is not where the second one looks."""
    process = start(muster, {"web": WEB}, nodes=1, command=WAIT)
    muster.wait_for_driver("began")
    stale = record(muster)
    assert (stale["attempt"], stale["cycle"], stale["ready"]) == (0, 0, 1)
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    process.communicate(timeout=180)
    assert record(muster)["ready"] == 1  # nobody was there to take it back
    shown = "echo dir $MUSTER_SERVICES_DIR; cat $MUSTER_SERVICES_DIR/web.json"
    job = json.loads((muster.run_dir() / "job.json").read_text())
    (muster.run_dir() / "job.json").write_text(json.dumps({**job, "command": ["bash", "-c", shown]}))
    again = (muster.run_dir() / "job.sh").read_text().replace("\nnumber=0\n", "\nnumber=1\n")
    done = subprocess.run(["bash", "-c", again], capture_output=True, text=True, timeout=180)
    log = (muster.run_dir() / "attempt-1" / "logs" / "driver.log").read_text()
    assert done.returncode == 0, done.stderr + log
    found = json.loads(log.splitlines()[-1])
    assert (found["attempt"], found["ready"]) == (1, 1) and found["urls"] != [] and "attempt-1/services" in log


# -- sandboxes ----------------------------------------------------------------------------------------------------

EXECUTE = """
import json, os, urllib.request
url, urls = os.environ["MUSTER_SERVICE_SANDBOX"], os.environ["MUSTER_SERVICE_SANDBOX_URLS"]
body = {"generated_code": "print(6 * 7)", "language": "python", "timeout": 20}
ask = urllib.request.Request(url + "/execute", json.dumps(body).encode(), {"Content-Type": "application/json"})
print(url, urls, json.load(urllib.request.urlopen(ask))["stdout"].strip(), flush=True)
while not os.path.exists("stop"):
    __import__("time").sleep(0.1)
"""


def test_a_sandbox_gates_the_driver_and_every_node_knows_the_others(muster: MusterCommand) -> None:
    (muster.cwd / "driver.py").write_text(EXECUTE)
    settings = {"workers_min": 1, "workers_max": 2, "preload": []}
    sandbox = {"kind": "sandbox", "settings": settings, "deadline": "60s"}
    process = start(muster, {"sandbox": sandbox}, command=["python", "driver.py"])
    run_dir = muster.wait_for_driver("42")
    url, urls, said = (run_dir / "attempt-0" / "logs" / "driver.log").read_text().split()
    assert (urls, said) == (url, "42") and url.startswith("http://127.0.0.1:")
    known = wait_for("the members", lambda: members(muster, 2))
    assert known[0] == known[1]
    assert all(url not in endpoint and endpoint.startswith("http://127.0.0.1:") for endpoint in known[0])
    (muster.cwd / "stop").touch()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err


def members(muster: MusterCommand, count: int) -> list[list[str]] | None:
    """What so many nodes know of each other, when they know of all."""
    digest = Path(temp_dir(muster.run_dir().name, 0, 0, 0)).parent
    found = [json.loads(path.read_text())["endpoints"] for path in digest.glob("*.service-sandbox/members.json")]
    return found if len(found) == count and all(len(known) == count for known in found) else None


def test_settings_that_a_node_refuses_end_the_run_with_its_words(muster: MusterCommand) -> None:
    sandbox = {"kind": "sandbox", "settings": {"workers_min": 5, "workers_max": 2}}
    done = run(muster, {"sandbox": sandbox}, nodes=1, command=["true"])
    assert done.returncode == 125
    assert "service sandbox on node-0 exited with 2 before it was ready" in done.stderr
    assert "workers_min is 5, more than workers_max, 2" in done.stderr


def test_the_example_runs_as_it_is(muster: MusterCommand) -> None:
    shutil.copytree(REPOSITORY / "examples", muster.cwd / "examples")
    options = ("--backend", "local", "--no-ray", "--python", muster.python)
    done = muster("run", "--file", "examples/services.yaml", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True says") == 3 and "3 of 3 are ready, in cycle 0" in done.stdout


@pytest.mark.ray
@pytest.mark.parametrize("scope", ["any", "head"])
def test_ray_s_workers_on_all_nodes_find_a_service_of_one_node(muster: MusterCommand, scope: str) -> None:
    (muster.cwd / "driver.py").write_text(
        "import os, muster, ray\nray.init(log_to_driver=False)\n"
        "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On\n"
        "def find():\n    import muster\n    return muster.service('web')\n"
        "places = [On(node['NodeID'], False) for node in ray.nodes()]\n"
        "found = ray.get([ray.remote(find).options(scheduling_strategy=place).remote() for place in places])\n"
        "print(len(found), {*found} == {muster.service('web'), os.environ['MUSTER_SERVICE_WEB']})\n"
    )
    done = run(muster, {"web": {**WEB, "scope": scope}}, command=["python", "driver.py"], ray=True, cpus_per_node=1)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "2 True", done.stderr


@pytest.mark.ray
def test_ray_s_workers_find_the_endpoint_of_their_own_node(muster: MusterCommand) -> None:
    (muster.cwd / "driver.py").write_text(
        "import os, ray\nray.init(log_to_driver=False)\n"
        "own = lambda: os.environ['MUSTER_SERVICE_WEB']\n"
        "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On\n"
        "places = [On(node['NodeID'], False) for node in ray.nodes()]\n"
        "tasks = [ray.remote(own).options(scheduling_strategy=place) for place in places]\n"
        "found = ray.get([task.remote() for task in tasks])\n"
        "print(sorted(found) == sorted(os.environ['MUSTER_SERVICE_WEB_URLS'].split(',')), len(set(found)))\n"
    )
    done = run(muster, {"web": WEB}, command=["python", "driver.py"], ray=True, cpus_per_node=1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True 2"


@pytest.mark.slow
@pytest.mark.ray
def test_the_example_with_rollouts_runs_as_it_is(muster: MusterCommand) -> None:
    shutil.copytree(REPOSITORY / "examples", muster.cwd / "examples")
    done = muster("run", "--file", "examples/rl_rollouts.yaml", "--backend", "local", "--python", muster.python)
    assert done.returncode == 0, done.stderr
    assert "40 rollouts from 2 nodes, mean reward" in done.stdout and "lost" not in done.stdout
