"""Replicas on real Ray: ready means that all of them answer; what fails is started again or taken back."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import connect, eventually

if TYPE_CHECKING:
    from tests.placement.conftest import Marked


ray = pytest.importorskip("ray")

from muster.placement import (
    Endpoint,
    Event,
    Model,
    OwnedElsewhere,
    PlacementError,
    Policy,
    Probe,
    Replicas,
    SubprocessError,
)
from muster.placement.runtime import groups, orphans, start_wait
from muster.placement.runtime.names import NAMESPACE, parse_name

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

# Answers /health, ends on /die, is silent on /health from /mute on, and tells its arguments on anything else.
# Only rank 0 listens: all nodes of the test's cluster are one host, on which a port can be bound once.
SERVER = """
import http.server, os, sys, time
if sys.argv[3:4] not in ([], ["0"]): time.sleep(1000)
mute = False
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global mute
        if self.path == "/die": print("asked to die", flush=True); os._exit(3)
        mute = mute or self.path == "/mute"
        self.send_response(503 if mute and self.path == "/health" else 200)
        self.end_headers()
        self.wfile.write(" ".join(sys.argv[1:]).encode())
    def log_message(self, *_): pass
print("listening", flush=True)
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Answer).serve_forever()
"""
SMALL = Model("small", gpus_per_rank=0, cpus=1)
QUICK = {
    "probe": Probe(interval=0.2, timeout=60.0, failures=2),
    "policy": Policy(backoff=0.1, start_timeout=600),
    "grace": 2.0,
}


def serving(name: str, marked: Marked, model: Model = SMALL, source: str = SERVER, **options: Any) -> Replicas:
    arguments = ["-S", "-c", source, "{port}", "{replica}", "{rank}", "{nnodes}", "{master_addr}"]
    return Replicas(name, model, python_args=arguments, env=marked.env, **{**QUICK, **options})


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def of_server(name: str) -> list[str]:
    """The actors and groups there are under a server's name."""
    actors = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == NAMESPACE]
    names = [*actors, *groups.find_groups_anywhere(lambda text: True)]
    return [text for text in names if (found := parse_name(text)) is not None and found.server == name]


def test_three_replicas_over_two_nodes_answer_are_scaled_and_leave_nothing(marked: Marked) -> None:
    model = Model("small", replicas=3, gpus_per_rank=2)  # two fit on the worker, one on the head
    with serving("three", marked, model) as server:
        assert [get(endpoint.url).split()[1] for endpoint in server.endpoints()] == ["0", "1", "2"]
        status = server.status()
        assert {each.state for each in status} == {"ready"} and len({each.nodes for each in status}) == 2
        server.scale(1)
        assert len(server.endpoints()) == 1 and len(marked.alive()) == 1
        server.scale(2)
        assert [get(endpoint.url).split()[1] for endpoint in server.endpoints()] == ["0", "1"]
        assert [(event.replica, event.state) for event in server.events].count((1, "ready")) == 2
        with pytest.raises(PlacementError, match="cannot fit, not even on the empty cluster"):
            server.scale(5)
        assert len(server.endpoints()) == 2
    assert marked.alive() == [] and of_server("three") == []


def test_a_failed_start_takes_all_replicas_back_and_shows_exit_code_and_last_lines(marked: Marked) -> None:
    source = "import sys\nif sys.argv[2] == '1': print('no such weights'); sys.exit(7)\n" + SERVER
    with pytest.raises(SubprocessError) as caught:
        serving("fails", marked, Model("m", replicas=2, gpus_per_rank=0), source).start()
    assert caught.value.debug_context["exit_code"] == 7
    assert "replica 1: ended before it was ready" in str(caught.value) and "  | no such weights" in str(caught.value)
    assert marked.alive() == [] and of_server("fails") == []
    with pytest.raises(SubprocessError, match="could not be started"):
        Replicas("fails", SMALL, command=["/no/such/program"], **QUICK).start()  # the name is free again


def test_a_replica_that_is_not_ready_in_time_reports_why_its_probe_failed(marked: Marked) -> None:
    with pytest.raises(SubprocessError, match=r"is not ready after 5 s: .*:\d+: Connect call failed"):
        serving("slow", marked, source="import time; time.sleep(1000)", policy=Policy(start_timeout=5)).start()
    assert marked.alive() == [] and of_server("slow") == []


def test_a_start_on_a_probe_path_that_the_program_lacks_is_reported_and_ends_early(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_wait, "FIRST_REPORT_S", 0.0)
    monkeypatch.setattr(start_wait, "WRONG_PATH_S", 0.5)
    progress: list[str] = []
    source = SERVER.replace("else 200", "else 404")
    with pytest.raises(SubprocessError, match=r"is not ready: GET /health answered 404 .*probe=Probe\(path="):
        serving("lacks", marked, source=source, on_progress=progress.append).start()
    assert any("replica 0 is starting: not ready after" in line for line in progress)
    assert marked.alive() == [] and of_server("lacks") == []


def test_an_unexpected_error_of_the_supervision_is_raised_by_start(marked: Marked) -> None:
    with pytest.raises(SubprocessError, match=r"replica 0: TypeError: .*working_dir"):  # of Ray
        serving("broken", marked, runtime_env={"working_dir": 5}).start()
    assert of_server("broken") == []


def test_a_start_ends_when_another_process_claims_the_name_meanwhile(marked: Marked) -> None:
    starting = serving("claimed", marked, source="import time; time.sleep(1000)")
    with ThreadPoolExecutor() as pool:
        start = pool.submit(starting.start)
        eventually("the program", marked.alive)
        with serving("claimed", marked, takeover=True) as second:
            with pytest.raises(OwnedElsewhere, match="another process claimed server 'claimed' before it was ready"):
                start.result(timeout=180)
            assert second.endpoints()


def test_one_that_ends_or_falls_silent_is_started_again_until_the_budget_is_used_up(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_wait, "FIRST_REPORT_S", float("inf"))  # events of a slow start are not expected below
    seen: list[Event] = []
    policy = Policy(max_restarts=2, backoff=0.1, start_timeout=600)
    with serving("again", marked, on_event=seen.append, policy=policy) as server:

        def restarted(times: int) -> bool:
            (status,) = server.status()
            return status.restarts == times and status.state == "ready"

        with pytest.raises(OSError):
            get(f"{server.endpoints()[0].url}/die")
        eventually("a first restart", lambda: restarted(1))
        get(f"{server.endpoints()[0].url}/mute")
        eventually("a second restart", lambda: restarted(2))
        with pytest.raises(OSError):
            get(f"{server.endpoints()[0].url}/die")
        eventually("the end", lambda: server.status()[0].state == "failed")
        assert server.endpoints() == []
        assert "exited with 3" in server.status()[0].error and "  | asked to die" in server.status()[0].error
    states = [event.state for event in seen]
    assert states == ["ready", *["restarting", "starting", "ready"] * 2, "failed"]
    assert "GET /health answered 503" in seen[4].detail


def test_a_killed_actor_is_a_failed_replica(marked: Marked) -> None:
    with serving("killed", marked) as server:
        ray.kill(ray.get_actor("killed/1/0.0", namespace=NAMESPACE))
        eventually("a restart", lambda: server.status()[0].restarts == 1 and server.endpoints())
        assert len(marked.alive()) == 1
        assert "its actor is gone" in server.status()[0].error and "  | listening" in server.status()[0].error


def test_a_name_belongs_to_one_live_owner_until_it_is_taken_over(marked: Marked) -> None:
    with serving("mine", marked) as first, serving("mine_too", marked) as other:
        with pytest.raises(OwnedElsewhere, match=r"server 'mine' belongs to process .*takeover=True"):
            serving("mine", marked).start()
        assert first.endpoints()
        with serving("mine", marked, takeover=True) as second:
            eventually("the first to let go", lambda: first.status()[0].state == "stopped")
            assert get(second.endpoints()[0].url) and other.endpoints()  # a longer name is another server
            assert len(marked.alive()) == 2
        assert of_server("mine") == []
    with serving("mine", marked) as third:  # released: nobody has to be taken over
        assert third.endpoints()


def test_a_request_waits_for_room_and_reports_progress(marked: Marked) -> None:
    told: list[str] = []
    held = groups.build_pg([{"CPU": 1, "GPU": 4}], "STRICT_PACK", name="held")

    def make_room(line: str) -> None:
        if not told:
            groups.remove_groups([held])
        told.append(line)

    eventually("Ray to know of it", lambda: not ray.available_resources().get("GPU", 0) > 2)
    with serving("busy", marked, Model("large", tp=4), on_progress=make_room) as server:
        assert server.endpoints()
    assert told[0] == (
        "waiting for room: 1 replica of large do not fit now; they would if nothing else ran "
        "(2 nodes, planned against their free resources)"
    )


def test_a_request_that_can_never_fit_is_refused_at_once_with_the_plan(marked: Marked) -> None:
    with pytest.raises(PlacementError, match=r"lacks 1 GPU .4 GPU left of 4 GPU."):
        serving("never", marked, Model("m", tp=5)).start()
    assert of_server("never") == []


def test_a_replica_over_two_nodes_is_one_program(marked: Marked) -> None:
    model = Model("wide", gpus_per_rank=0, tp=1, pp=2, strategy="STRICT_SPREAD")
    with serving("wide", marked, model) as server:
        (endpoint,) = server.endpoints()
        assert get(endpoint.url).split()[1:] == ["0", "0", "2", endpoint.host]
        (status,) = server.status()
        assert len(set(status.nodes)) == 2 and len(status.pids) == 2
        eventually("both parts of it", lambda: len(marked.alive()) == 2)
        ray.kill(ray.get_actor("wide/1/0.1", namespace=NAMESPACE))
        eventually("all of it again", lambda: server.status()[0].restarts and server.endpoints())
        assert server.status()[0].restarts == 1
        assert not set(status.pids) & set(server.status()[0].pids)


async def test_in_asynchronous_code_the_loop_goes_on(marked: Marked) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    ticking = asyncio.create_task(tick())
    async with serving("async", marked) as server:
        assert server.endpoints() and ticks > 3
    starting = asyncio.create_task(serving("async", marked, source="import time; time.sleep(1000)").__aenter__())
    await asyncio.to_thread(eventually, "the program", marked.alive)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    ticking.cancel()
    assert marked.alive() == [] and of_server("async") == []


def test_detached_replicas_outlive_a_connection_and_are_looked_after_again(ray_cluster: Any, marked: Marked) -> None:
    with serving("kept", marked, detached=True) as server:
        (before,) = server.endpoints()
        server.disconnect()
        ray.shutdown()
        assert get(before.url)
        connect(ray_cluster)
        server.reconnect()
        assert server.endpoints() == [before]
        with pytest.raises(OSError):
            get(f"{before.url}/die")
        eventually("a restart", lambda: server.status()[0].restarts == 1 and server.endpoints())
    with serving("kept", marked) as server, pytest.raises(RuntimeError, match="is not detached"):
        server.disconnect()


DRIVER = """
import sys, time, ray
from muster.placement import Model, Probe, Replicas
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
server = Replicas("orphaned", Model("m", gpus_per_rank=0), python_args=["-S", "-c", sys.argv[2], "{port}"],
                  env={sys.argv[3]: sys.argv[4]}, probe=Probe(interval=0.2), detached=sys.argv[5] == "detached").start()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("lifetime", ["bound", "detached"])
def test_a_killed_drivers_server_is_gone_or_the_next_owners_to_sweep(
    ray_cluster: Any, marked: Marked, lifetime: str
) -> None:
    ((key, value),) = marked.env.items()
    command = [sys.executable, "-c", DRIVER, ray_cluster.address, SERVER, key, value, lifetime]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
        with pytest.raises(OwnedElsewhere, match=f"belongs to process {driver.pid} on "):
            serving("orphaned", marked).start()
        driver.kill()
    if lifetime == "bound":
        eventually("the server to be gone", lambda: not marked.alive())
    with serving("orphaned", marked) as server:
        assert server.endpoints() and len(marked.alive()) == 1
    assert orphans.sweep_server("orphaned", before_term=10**6) == 0


def test_the_example_serves_on_three_replicas_over_two_nodes(ray_cluster: Any) -> None:
    example = Path(__file__).parents[3] / "examples" / "serve_replicas.py"
    env = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
    done = subprocess.run([sys.executable, str(example)], env=env, stdout=subprocess.PIPE, text=True, timeout=200)
    assert done.returncode == 0 and "3 replicas on 2 nodes\n" in done.stdout
    assert done.stdout.count('{"to": 2, "be": 2, "or": 1, "not": 1}') == 3


def test_calls_that_make_no_sense_are_refused() -> None:
    for program in ({}, {"command": ["a"], "python_args": ["b"]}):
        with pytest.raises(ValueError, match="exactly one of 'command' and 'python_args'"):
            Replicas("x", SMALL, **program)
    with pytest.raises(ValueError, match="a server's name is"):
        Replicas("a/b", SMALL, command=["a"])
    server = Replicas("x", SMALL, command=["a"])
    with pytest.raises(ValueError, match=r"at least 1, not 0; stop\(\) ends all"):
        server.scale(0)
    with pytest.raises(RuntimeError, match="'x' has not been started"):
        server.scale(1)
    server.stop()  # of a server that was never started: nothing to do


def test_an_endpoint_s_url_has_brackets_around_an_ipv6_address() -> None:
    assert Endpoint(0, "10.0.0.1", 80).url == "http://10.0.0.1:80" and Endpoint(0, "::1", 80).url == "http://[::1]:80"


def test_an_error_of_the_event_callback_is_logged_and_the_event_kept(caplog: pytest.LogCaptureFixture) -> None:
    server = Replicas("x", SMALL, command=["a"], on_event=lambda event: 1 / 0)  # type: ignore[arg-type, return-value]
    server._on_replica_event(Event(0.0, 3, "ready"))
    assert [event.replica for event in server.events] == [3]
    assert "on_event failed for: replica 3 is ready" in caplog.text


def test_a_replica_leaves_its_endpoint_before_it_is_stopped(
    marked: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SERVICES_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_CYCLE", "0")
    record, published, seen = tmp_path / "chat.json", tmp_path / "chat.replicas", list[list[str]]()
    ended = threading.Event()

    def lead() -> None:
        """Confirm each list as the run's leader does; each replica in it must answer."""
        version = 0
        while not ended.wait(0.02):
            found = json.loads(published.read_text()) if published.exists() else {"version": 0}
            if found["version"] != version:
                version = found["version"]
                seen.append(found["urls"])
                if len(found["urls"]) < len(seen[max(0, len(seen) - 2)]):  # what was taken out still runs
                    assert all(get(url) for url in seen[-2])
                (tmp_path / "new").write_text(json.dumps({"cycle": 0, "replicas_version": version}))
                (tmp_path / "new").rename(record)

    record.write_text(json.dumps({"cycle": 0, "replicas_version": None}))
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead)
        try:
            with serving("chat", marked, Model("small", replicas=2, gpus_per_rank=0, cpus=1), endpoint="chat") as chat:
                urls = sorted(endpoint.url for endpoint in chat.endpoints())
                assert seen[-1] == urls and len(urls) == 2
                chat.scale(1)
                assert len(seen[-1]) == 1
        finally:
            ended.set()
        leading.result(120)
    assert seen[-1] == []
