"""The server as a whole: slots and queue, lost workers, two endpoints, metrics, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from tests.running import wait_for
from tests.sandbox.serving import survivors

from muster.process.proctree import descendants, read_processes
from muster.sandbox import server
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.settings import SandboxSettings

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

SLEEP = "import time; time.sleep({})"
KEYS = {"process_status", "stdout", "stderr"}


def in_background(do: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def busy(served: Served, count: int) -> None:
    wait_for(f"{count} to run", lambda: served.ask("GET", "/load")["running"] >= count)


def test_as_many_programs_as_slots_run_at_the_same_time(own: Callable[..., Served]) -> None:
    served = own(workers_min=16, workers_max=16)
    threads = [in_background(lambda: served.execute(SLEEP.format(600), timeout=900)) for _ in range(16)]
    busy(served, 16)
    served.stop()  # they end with it
    for thread in threads:
        thread.join()


def test_health_is_answered_while_every_slot_is_busy_and_the_queue_full(own: Callable[..., Served]) -> None:
    served = own(workers_min=2, workers_max=2, queue=4, queue_wait_s=3.5)
    threads = [in_background(lambda: served.execute(SLEEP.format(60), timeout=80, patient=False)) for _ in range(6)]
    busy(served, 2)
    for _ in range(20):
        assert served.ask("GET", "/health")["status"] == "healthy"
    assert served.ask("GET", "/load")["running"] == 2  # none of the sleepers was waited for
    served.stop()  # they are told, and end with it
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def blocker(served: Served) -> Iterator[None]:
    """Takes a slot until it leaves."""
    body = json.dumps({"generated_code": SLEEP.format(600), "timeout": 900, "language": "python"}).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as leaver:
        kind = b"Content-Type: application/json"
        leaver.sendall(b"POST /execute HTTP/1.1\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body))
        busy(served, 1)
        yield


def test_a_full_queue_is_answered_at_once_and_a_long_wait_in_time(own: Callable[..., Served]) -> None:
    served = own(workers_min=1, workers_max=1, queue=1, queue_wait_s=3.5)
    answers: list[Any] = []
    with blocker(served):
        waiting = in_background(lambda: answers.append(served.execute("print(1)", timeout=5, patient=False)))
        wait_for("one to wait", lambda: served.ask("GET", "/load")["queued"] == 1)
        refused = served.execute("print(1)", timeout=5, patient=False)
        assert refused.status == 503 and set(refused) >= KEYS and refused["process_status"] == "error"
        assert "1 requests wait already" in refused["error"] and refused["reason"] == "overloaded"
        waiting.join()
    assert answers[0].status == 503 and set(answers[0]) >= KEYS and "busy for 3.5 s" in answers[0]["error"]
    assert served.out("print(2)") == "2\n"


def test_a_client_that_leaves_frees_its_slot(own: Callable[..., Served]) -> None:
    served = own(workers_min=1, workers_max=1)
    with blocker(served):
        pass
    wait_for("the slot", lambda: served.ask("GET", "/load")["running"] == 0)
    assert served.out("print(1)") == "1\n"


def workers_of(served: Served) -> list[int]:
    """Host pids of its warm interpreter and workers."""
    return [pid for pid in supervisors_children(served) if b"FromMemory" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def supervisors_children(served: Served) -> list[int]:
    """The supervisor has detached itself; it is whoever holds the scope's directories in its arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(bytes(served.place) + b"/muster-sandbox-") for word in words):
                found += [int(entry.name), *descendants(int(entry.name))]
    return found


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pid in read_processes()]


@pytest.mark.parametrize("level", ["root", "floor"] if os.getuid() == 0 else ["floor"])
def test_killed_workers_are_replaced_and_only_what_ran_in_them_fails(own: Callable[..., Served], level: str) -> None:
    served = own(level, workers_min=2, workers_max=4)
    answers: list[Any] = []
    mark = served.new_session()
    child = f"subprocess.Popen(['{mark}', '600'], executable='/bin/sleep', start_new_session=True)"
    running = f"import subprocess; {child}\n{SLEEP.format(60)}"
    thread = in_background(lambda: answers.append(served.execute(running, timeout=90, report=True)))
    wait_for("its child", lambda: survivors(mark))
    for pid in workers_of(served):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # the warm interpreter among them: it comes back as well
    thread.join(120)
    assert answers[0]["process_status"] == "error" and answers[0]["reason"] == "lost"
    assert wait_for("a working sandbox", lambda: served.execute("print(1)")["stdout"] == "1\n")
    wait_for("its child to be ended too", lambda: not survivors(mark))
    wait_for("the minimum of workers", lambda: served.ask("GET", "/load")["workers"] >= 2)
    probe = "import socket\ntry:\n    socket.socket(type=socket.SOCK_DGRAM)\nexcept OSError as error:\n    print('off')"
    assert served.out(probe) == "off\n"  # the new ones are walled in as the old ones were


def test_warm_workers_are_kept_and_idle_ones_retired(own: Callable[..., Served]) -> None:
    served = own(workers_min=1, workers_max=6, idle_s=1)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: served.execute(SLEEP.format(1)), range(6)))
    assert served.ask("GET", "/load")["workers"] > 1
    wait_for("the others to be retired", lambda: served.ask("GET", "/load")["workers"] == 1)


@pytest.mark.parametrize("level", ["root", "user", "floor"] if os.getuid() == 0 else ["user", "floor"])
def test_sigterm_leaves_no_process_port_or_file(own: Callable[..., Served], level: str) -> None:
    served = own(level)
    served.cell("import subprocess; p = subprocess.Popen(['sleep', '600'])", "a")
    served.execute("echo x > f", "shell", headers={"X-Workspace-ID": "w"})
    answers: list[Any] = []
    thread = in_background(lambda: answers.append(served.execute(SLEEP.format(600), timeout=900, patient=False)))
    busy(served, 1)
    family = supervisors_children(served)
    assert len(family) > 3
    assert served.stop() == 0
    thread.join(120)
    assert answers[0]["process_status"] == "error" and "the sandbox is stopping" in answers[0]["stderr"]
    wait_for("the supervisor to follow", lambda: not alive(family))  # it says that all is gone, and goes
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port))
    assert sorted(path.name for path in served.place.iterdir()) == ["log"]
    assert leftover_cgroups(served.process.pid) == []
    assert served.said().count("\n") == 1  # its announcement: nothing went wrong on the way


def leftover_cgroups(pid: int) -> list[str]:
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-name", f"muster-sandbox-{pid}-*"], capture_output=True, text=True
    )
    return found.stdout.split()


def test_a_killed_server_leaves_nothing_either(own: Callable[..., Served]) -> None:
    served = own()
    served.cell("import subprocess; p = subprocess.Popen(['sleep', '600'])", "a")
    family = supervisors_children(served)
    served.stop(signal.SIGKILL)
    wait_for("all to be gone", lambda: not alive(family))
    wait_for("the scratch to be gone", lambda: not list(served.place.glob("muster-sandbox-*")))
    wait_for("the cgroups to be gone", lambda: not leftover_cgroups(served.process.pid))


def test_the_endpoint_between_nodes_wants_the_token(own: Callable[..., Served]) -> None:
    served = own(listen="127.0.0.1:0", token="t0p")
    port = served.facts["listen_port"]
    body = {"generated_code": "print(1)", "timeout": 5, "language": "python"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "t0p"}):
        answer = served.ask("POST", "/execute", body, headers, port)
        assert answer.status == 401 and set(answer) >= KEYS
    assert served.ask("POST", "/execute", body, {"Authorization": "Bearer t0p"}, port)["stdout"] == "1\n"
    assert served.ask("GET", "/health", port=port).status == 401
    assert served.out("print(2)") == "2\n"  # loopback's asks for nothing


def test_metrics_and_load_name_the_host_and_count(strong: Served) -> None:
    strong.execute("print(1)")
    strong.execute("import time; time.sleep(9)", timeout=0.2)
    text = strong.ask("GET", "/metrics")["text"]
    assert f'host="{socket.gethostname()}"' in text
    executions = 'executions_total{{language="python",status="{}"}}'.format
    for name in (executions("ok"), executions("timeout"), "run_seconds_bucket", "queued", "sessions", "requests_total"):
        assert f"muster_sandbox_{name}" in text, name
    load = strong.ask("GET", "/load")
    assert load["host"] == socket.gethostname() and load["busiest"][0]["busy_s"] > 0
    assert load["executed"] >= 2 and load["failed"] >= 1 and load["rate"] >= 0


def test_unknown_paths_and_methods_are_told(strong: Served) -> None:
    assert strong.ask("GET", "/nothing").status == 404
    assert strong.ask("GET", "/execute").status == 405


# -- what can be chosen ---------------------------------------------------------------------------------------------


def test_the_network_can_be_allowed(own: Callable[..., Served]) -> None:
    served = own(network=True)
    with socket.create_server(("127.0.0.1", 0)) as there:
        code = f"import socket; socket.create_connection(('127.0.0.1', {there.getsockname()[1]}), 10); print('reached')"
        assert served.out(code) == "reached\n"
    isolation = served.facts["isolation"]
    assert isolation["level"] == "full" and "net namespace" not in isolation["mechanisms"]


def test_programs_get_the_variables_and_places_that_were_chosen_for_them(
    own: Callable[..., Served], tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("shared")
    os.chmod(tmp_path, 0o755)
    served = own(env={"CHOSEN": "yes"}, read_only=[str(tmp_path)])
    code = f"""
import os
print(os.environ["CHOSEN"], open({str(tmp_path / "data")!r}).read(), "MUSTER_TEST_TAG" in os.environ)
try:
    open({str(tmp_path / "data")!r}, "w")
except OSError:
    print("read-only")
"""
    assert served.out(code) == "yes shared False\nread-only\n"


def test_calls_that_name_no_workspace_can_share_one(own: Callable[..., Served]) -> None:
    served = own(shared_scratch=True)
    served.execute("echo 'int main(void){return 5;}' > m.c; mkdir -p /tmp/d", "shell")
    served.execute("cp m.c /tmp/d/", "shell")
    assert served.out("ls /tmp/d", "shell") == "m.c\n"


def test_less_than_the_floor_must_be_asked_for_and_is_reported(own: Callable[..., Served]) -> None:
    served = own("floor", isolation="process")
    assert served.facts["isolation"]["level"] == "process"
    assert not [one for one in served.facts["isolation"]["mechanisms"] if "Landlock" in one]
    assert served.out("print(1)") == "1\n"


# -- open files -------------------------------------------------------------------------------------------------------


class FakeLimit:
    """The limit of open files of a process."""

    RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int) -> None:
        self.soft, self.hard = soft, hard

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.soft, self.hard

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        self.soft, self.hard = limits


FILES = SandboxSettings(workers_min=1, workers_max=10, sessions_max=90)
OWN = server.FILES_PER_WORKER * (100 + FILES.workers_min)
ALL = OWN + server.CONNECTION_FILES_MIN + 3 * server.CONNECTIONS_MAX


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 1 << 20, ALL, 4096),
        (1 << 20, 1 << 20, 1 << 20, 4096),
        (1024, 4096, 4096, (4096 - OWN) // 3),
        (1024, resource.RLIM_INFINITY, ALL, 4096),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096),
    ],
)
def test_the_limit_of_open_files_is_raised_and_leaves_connections_for_each_endpoint(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int, connections: int
) -> None:
    limit = FakeLimit(soft, hard)
    monkeypatch.setattr(server, "resource", limit)
    assert server.allow_open_files(FILES) == connections
    assert (limit.soft, limit.hard) == (raised, hard)


def test_too_few_open_files_for_the_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = FakeLimit(1024, 1024)
    monkeypatch.setattr(server, "resource", limit)
    with pytest.raises(SandboxError, match=f"{OWN + 512} open files are needed, 1024 are allowed: use fewer workers"):
        server.allow_open_files(FILES)
    assert limit.soft == 1024


def test_repeated_errors_of_the_event_loop_are_counted_instead_of_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop, now = Mock(), [1000.0]
    loop.time = lambda: now[0]
    log = server.ErrorLog()
    for _ in range(500):
        log(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24, "files")})
    assert loop.default_exception_handler.call_count == 1
    now[0] += server.ERROR_LOG_INTERVAL_S
    log(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24, "files")})
    assert loop.default_exception_handler.call_count == 2
    assert "499 more errors" in capsys.readouterr().err


def test_a_server_whose_supervisor_is_killed_ends_and_leaves_nothing(own: Callable[..., Served]) -> None:
    served = own()
    (supervisor,) = {read_processes()[pid][0] for pid in workers_of(served)[:1]}
    os.kill(supervisor, signal.SIGKILL)
    assert served.process.wait(180) == 1
    assert "its supervisor was killed" in served.said()
    assert not list(served.place.glob("muster-sandbox-*"))
