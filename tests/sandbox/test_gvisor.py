"""The level gvisor: programs run in a kernel of gVisor, with the contract and the limits of the other levels."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.running import wait_for
from tests.sandbox.conftest import GVISOR_LEVELS, RUNSC, serve_at
from tests.sandbox.serving import Served

from muster.process.proctree import read_processes
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.skipif(RUNSC is None, reason="there is no runsc (gVisor) here: `make test-gvisor` fetches it")


@pytest.fixture(params=GVISOR_LEVELS)
def at_gvisor(request: pytest.FixtureRequest, servers: Callable[[str], Served]) -> Served:
    return servers(request.param)


def sandboxes_of(served: Served) -> list[int]:
    """Return the processes of runsc with files of a server."""
    found = []
    for pid in read_processes():
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            found += [pid] if b"runsc" in command and str(served.place).encode() in command else []
    return found


def traces_on_the_host() -> set[str]:
    """Return what runsc creates outside its directory when it is not told otherwise."""
    places = ("/tmp", "/run", "/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids")
    return {
        f"{place}/{name}" for place in places if os.path.isdir(place) for name in os.listdir(place) if "runsc" in name
    }


def test_programs_run_in_the_kernel_of_gvisor_as_an_ordinary_user(at_gvisor: Served) -> None:
    kernel, user, parent = at_gvisor.out("import os; print(os.uname().release, os.getuid(), os.getppid())").split()
    assert kernel != os.uname().release and int(user) >= 1000
    assert parent == "1"  # the worker is the first process of its sandbox
    assert at_gvisor.out("uname -s; echo done", "shell") == "Linux\ndone\n"


def test_the_level_is_shown_by_health_and_metrics(at_gvisor: Served) -> None:
    level = at_gvisor.ask("GET", "/health")["isolation"]
    assert level["level"] == "gvisor" and "gVisor (systrap)" in level["mechanisms"]
    assert 'isolation="gvisor"' in at_gvisor.ask("GET", "/metrics")["text"]


def test_code_and_input_longer_than_a_packet_arrive(at_gvisor: Served) -> None:
    assert at_gvisor.out(f"print(len({'a' * 200_000!r}))") == "200000\n"
    assert at_gvisor.out("import sys; print(len(sys.stdin.read()))", std_input="b" * 300_000) == "300000\n"


def test_a_session_keeps_its_state_also_when_a_cell_is_interrupted(at_gvisor: Served) -> None:
    name = at_gvisor.new_session()
    at_gvisor.cell("x = 41", name)
    late = at_gvisor.cell("while True: pass", name, timeout=2)
    assert late["process_status"] == "timeout"
    assert at_gvisor.cell("print(x + 1)", name)["stdout"].strip() == "42"


def test_a_program_starts_without_what_the_last_one_left(at_gvisor: Served) -> None:
    for _ in range(8):  # each worker in turn
        assert at_gvisor.out("import os; print(os.listdir('.')); open('left', 'w').close()") == "[]\n"


def test_a_timeout_is_answered_in_time_whatever_is_ignored(at_gvisor: Served) -> None:
    code = "import signal\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n"
    answer = at_gvisor.execute(
        code + "    except (OSError, ValueError): pass\nwhile True: pass", timeout=1, report=True
    )
    assert answer["reason"] == "timeout"


def test_memory_is_limited(at_gvisor: Served) -> None:
    code = "held = bytearray(2 << 30)\nfor at in range(0, len(held), 4096): held[at] = 1"
    assert at_gvisor.execute(code, timeout=60, report=True)["reason"] == "memory"
    assert at_gvisor.out("print('fine')") == "fine\n"


def test_the_memory_of_one_python_program_can_be_limited_further(at_gvisor: Served) -> None:
    answer = at_gvisor.execute("held = bytearray(200 << 20)", memory_mb=64)
    assert "MemoryError" in answer["stderr"]
    assert at_gvisor.execute("held = bytearray(20 << 20)", memory_mb=64)["process_status"] == "completed"


def test_the_scratch_cannot_be_filled_beyond_its_limit(at_gvisor: Served) -> None:
    code = "import time\nfor n in range(40): open(f'f{n}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)"
    answer = at_gvisor.execute(code, timeout=60, report=True)
    assert answer["reason"] == "disk" or "No space left on device" in answer["stderr"]
    assert at_gvisor.out("print('fine')") == "fine\n"


def test_a_program_that_kills_all_it_can_affects_no_other(at_gvisor: Served) -> None:
    name = at_gvisor.new_session()
    at_gvisor.cell("x = 41", name)
    at_gvisor.execute("import os; os.kill(-1, 9)")
    at_gvisor.execute("import os; os.kill(1, 9)")
    assert at_gvisor.cell("print(x + 1)", name)["stdout"].strip() == "42"
    assert at_gvisor.out("print('fine')") == "fine\n"


def test_a_killed_sandbox_is_replaced(own: Callable[..., Served]) -> None:
    served = own(GVISOR_LEVELS[0], workers_min=1, workers_max=1)
    before = served.ask("GET", "/metrics")["text"]
    assert "muster_sandbox_workers_lost_total 0" in before
    for pid in sandboxes_of(served):
        os.kill(pid, signal.SIGKILL)
    wait_for("the loss", lambda: "workers_lost_total 0" not in served.ask("GET", "/metrics")["text"])
    assert served.out("print('fine')") == "fine\n"


@pytest.mark.parametrize("level", GVISOR_LEVELS)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_nothing_is_left_of_the_sandboxes(level: str, signum: int) -> None:
    before = traces_on_the_host()
    served = serve_at(level)
    try:
        mine = sandboxes_of(served)
        assert mine
        served.stop(signum)
        wait_for("the end of the sandboxes", lambda: not [pid for pid in mine if os.path.exists(f"/proc/{pid}")])
        wait_for("the removal of their files", lambda: not list(served.place.glob("muster-sandbox-*")))
        assert traces_on_the_host() <= before
    finally:
        served.clean()


@pytest.mark.skipif("gvisor" not in GVISOR_LEVELS, reason="needs root")
def test_a_workspace_is_shared_by_the_calls_that_name_it(own: Callable[..., Served]) -> None:
    served, name = own("gvisor"), {"X-Workspace-ID": "w"}
    served.out("open('f', 'w').write('kept'); open('/tmp/g', 'w').close()", headers=name)
    assert served.out("import os; print(open('f').read(), 'g' in os.listdir('/tmp'))", headers=name) == "kept True\n"
    assert served.ask("DELETE", "/workspaces/w").status == 200


def test_a_service_without_root_refuses_workspaces_and_says_why(own: Callable[..., Served]) -> None:
    served = own("gvisor as user")
    answer = served.execute("print(1)", headers={"X-Workspace-ID": "w"}, patient=False)
    assert answer.status == 503 and "workspaces need a service that runs as root" in str(answer)


async def test_a_network_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.path.dirname(str(RUNSC))}:{os.environ['PATH']}")
    engine = Engine(SandboxSettings(isolation="gvisor", network=True, preload=()))
    with pytest.raises(SandboxError, match=r"level gvisor is not available here: .* leave out --network"):
        await engine.open()
