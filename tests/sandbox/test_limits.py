"""Programs that exceed a limit: each fails with a reason, affects no other program, and leaves nothing behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.running import wait_for
from tests.sandbox.serving import survivors

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

# The pipe ends when both descendants have become what survivors() looks for.
LINGER = """
import os, sys, time
mark = {mark!r}
read, write = os.pipe()
def linger():
    with open("/dev/null") as null:
        os.dup2(null.fileno(), 0)
    os.execv("/bin/sleep", [mark, "600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        linger()
    os._exit(0)
if os.fork() == 0:
    linger()
os.close(write)
assert os.read(read, 1) == b""
"""


@pytest.mark.parametrize("end", ["", "time.sleep(600)", "os.kill(os.getpid(), 9)"], ids=["exit", "timeout", "crash"])
def test_no_descendant_outlives_its_program(box: Served, end: str) -> None:
    mark = "linger-" + box.new_session()
    box.execute(LINGER.format(mark=mark) + end, timeout=2)
    assert survivors(mark) == []  # by the time of the answer


def test_a_background_child_that_holds_stdout_does_not_delay_the_answer(box: Served) -> None:
    started = time.monotonic()
    assert box.out("sleep 600 & echo done", "shell", timeout=80) == "done\n"
    assert time.monotonic() - started < 60


def test_a_program_that_needs_too_much_memory_gets_a_memory_error(box: Served) -> None:
    answer = box.execute("x = bytearray(2 << 30)")
    assert answer["stderr"].splitlines()[-1] == "MemoryError"
    assert box.out("print('fine')") == "fine\n"


def test_memory_of_many_processes_together_is_limited(box: Served) -> None:
    code = """
import mmap, os, sys, time
for _ in range(4):
    if os.fork() == 0:
        shared = mmap.mmap(-1, 300 << 20)
        for page in range(0, 300 << 20, 4096):
            shared[page] = 1
        time.sleep(5)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(4)))  # at the first that was ended
"""
    answer = box.execute(code, timeout=60, report=True)
    assert (answer["process_status"], answer["reason"]) == ("error", "memory"), answer
    assert "it exceeded its memory limit" in answer["stderr"]
    assert box.out("print('fine')") == "fine\n"


SHARED_MEMORY = """
import mmap, os, sys, time
held = []
for _ in range(6):
    held.append(mmap.mmap(-1, 256 << 20))
    for page in range(0, 256 << 20, 4096):
        held[-1][page] = 1
    held[-1].madvise(mmap.MADV_DONTNEED)  # it stays allocated, and is in no resident set
print("held it all")
time.sleep(5)
"""
SOCKET_BUFFERS = """
import os, socket, sys, time
for _ in range(8):
    if os.fork() == 0:
        held = []
        try:
            while True:
                pair = socket.socketpair()
                held.append(pair)
                for one in pair:
                    one.setblocking(False)
                    try:
                        while True:
                            one.send(bytes(65536))
                    except BlockingIOError:
                        pass
        except OSError:
            time.sleep(20)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(8)))
"""


@pytest.mark.parametrize("code", [SHARED_MEMORY, SOCKET_BUFFERS], ids=["shared memory", "socket buffers"])
def test_memory_in_no_process_s_resident_set_is_limited_too(box: Served, code: str) -> None:
    answer = box.execute(code, timeout=100, report=True)
    assert (answer["process_status"], answer["reason"]) == ("error", "memory"), answer
    assert "held it all" not in answer["stdout"]
    assert box.out("print('fine')") == "fine\n"


def test_a_smaller_limit_can_be_asked_for(strong: Served) -> None:
    assert "MemoryError" in strong.execute("x = bytearray(200 << 20)", memory_mb=100)["stderr"]
    refused = strong.execute("1", memory_mb=100_000)
    assert refused.status == 400 and "memory_mb is 100000: at most 512 is allowed here" in refused["error"]


def test_a_fork_bomb_is_contained(box: Served) -> None:
    code = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    answer = box.execute(code, timeout=2, report=True)
    assert answer["process_status"] in ("timeout", "error")
    assert answer["reason"] in ("timeout", "processes")
    assert box.out("print('fine')") == "fine\n"
    assert box.ask("GET", "/health")["status"] == "healthy"


def test_a_bomb_that_leaves_its_session_at_every_step_is_ended_too(box: Served) -> None:
    answer = box.execute(
        ":(){ setsid bash -c 'sleep 0.01; '\"$(declare -f :)\"'; :' & }; :; sleep 60", "shell", timeout=2
    )
    assert answer["process_status"] in ("timeout", "error")
    assert box.out("print('fine')") == "fine\n"


# On one CPU, with a session for each process: the kernel may divide CPUs among sessions.
SPIN = """
import os, time
os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
end = time.monotonic() + SECONDS
children = 0
while children < PROCESSES and os.fork():
    children += 1
if children < PROCESSES:
    os.setsid()
while time.monotonic() < end:
    pass
if children < PROCESSES:
    os._exit(0)
for _ in range(children):
    os.wait()
"""


def test_a_program_gets_its_share_of_a_cpu_however_many_processes_another_has(strong: Served) -> None:
    if "cgroup cpu" not in strong.facts["isolation"]["mechanisms"]:
        pytest.skip("no cgroup divides the CPUs here")

    def rate(processes: int, seconds: float) -> float:
        code = SPIN.replace("PROCESSES", str(processes)).replace("SECONDS", str(seconds))
        answer = strong.execute(code, report=True, timeout=100)
        assert (answer["process_status"], answer["stderr"]) == ("completed", ""), answer
        return float(answer["usage"]["cpu_s"] / answer["usage"]["wall_s"])

    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(rate, 20, 4.0)
        wait_for("the processes", lambda: strong.ask("GET", "/load")["running"])
        one = rate(0, 2.0)
    assert one > many.result() / 4


def test_a_gigabyte_of_output_is_cut_exactly_and_the_program_runs_to_its_end(box: Served) -> None:
    code = """
import os
data = b"x" * (1 << 20)
for _ in range(1024):
    os.write(1, data)
os.write(2, b"end")
"""
    answer = box.execute(code, timeout=120, max_output_characters=50)
    assert answer == {"process_status": "completed", "stdout": "x" * 50 + "<output cut>", "stderr": "end"}


@pytest.mark.parametrize("workspace", [{}, {"X-Workspace-ID": "w"}], ids=["private", "workspace"])
def test_the_scratch_cannot_be_filled_beyond_its_limit(box: Served, workspace: dict[str, str]) -> None:
    code = """
import time
for number in range(100):
    with open(f"f{number}", "wb") as file:
        for _ in range(8):
            file.write(bytes(1 << 20))
time.sleep(20)
"""
    answer = box.execute(code, timeout=60, report=True, headers=workspace)
    assert answer["reason"] == "disk" or "No space left on device" in answer["stderr"], answer
    assert box.out("print('fine')") == "fine\n"
    box.ask("DELETE", "/workspaces/w")


@pytest.mark.parametrize("workspace", [{}, {"X-Workspace-ID": "w"}], ids=["private", "workspace"])
def test_directories_count_as_written_data(box: Served, workspace: dict[str, str]) -> None:
    code = """
import os, time
for number in range(60_000):
    os.mkdir(f"d{number}")
print("made them all")
time.sleep(20)
"""
    answer = box.execute(code, timeout=100, report=True, headers=workspace)
    assert answer["reason"] == "disk" or "No space left on device" in answer["stderr"], answer
    assert "made them all" not in answer["stdout"] or answer["reason"] == "disk"
    assert box.out("print('fine')") == "fine\n"
    box.ask("DELETE", "/workspaces/w")


def test_a_file_cannot_be_larger_than_its_limit(own: Callable[..., Served]) -> None:
    served = own(file_mb=2, scratch_mb=64)
    answer = served.execute("open('f', 'wb').write(bytes(4 << 20))")
    assert "File too large" in answer["stderr"]


def test_descriptors_and_core_files_are_limited(strong: Served) -> None:
    code = "import resource as r\nprint(r.getrlimit(r.RLIMIT_NOFILE)[1], r.getrlimit(r.RLIMIT_CORE)[1])"
    assert strong.out(code) == "1024 0\n"


@pytest.mark.parametrize("signum", [9, 11, 6])
@pytest.mark.parametrize("language", ["python", "shell"])
def test_a_program_ended_by_a_signal_is_not_completed(box: Served, language: str, signum: int) -> None:
    code = {"python": f"import os; os.kill(os.getpid(), {signum})", "shell": f"kill -{signum} $$"}[language]
    answer = box.execute(code, language, report=True)
    assert (answer["process_status"], answer["signal"]) == ("error", signum), answer
    assert answer["stderr"].endswith(f"Execution ended: it was ended by {signal.Signals(signum).name}\n")


def test_programs_are_the_first_to_go_when_memory_is_short(strong: Served) -> None:
    assert strong.out("print(open('/proc/self/oom_score_adj').read().strip())") == "1000\n"
