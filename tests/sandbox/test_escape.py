"""The escape suite: what foreign code tries, and what stops it. Each case runs at every level that claims to stop it.

docs/explanation/sandbox-security.md is the table of what each level does and does not stop.
"""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.sandbox.conftest import LEVELS

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

HAS_GCC = subprocess.run(["which", "gcc"], capture_output=True).returncode == 0


class Listener:
    """A TCP and a UDP port on this machine's loopback, and who reached them."""

    OURS = b"of the test"

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: queue.Queue[str] = queue.Queue()

    def reached(self) -> list[str]:
        """Return who reached the ports so far. Our own connection and packet are the last in their queues."""
        with socket.create_connection(("127.0.0.1", self.port)) as tcp:
            tcp.sendall(self.OURS)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.sendto(self.OURS, ("127.0.0.1", self.port))
        found, missing = [], {"our tcp", "our udp"}
        while missing:
            found.append(self.seen.get(timeout=120))
            missing.discard(found[-1])
        return [one for one in found if not one.startswith("our ")]


@pytest.fixture
def listener() -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        made = Listener(tcp.getsockname()[1])
        udp.bind(("127.0.0.1", made.port))

        def watch(one: socket.socket, kind: str) -> None:
            try:
                while True:
                    if kind == "tcp":
                        with one.accept()[0] as connection:
                            connection.settimeout(120)
                            data = connection.recv(100)
                    else:
                        data = one.recv(100)
                    made.seen.put(f"our {kind}" if data == Listener.OURS else kind)
            except OSError:
                return

        watchers = [threading.Thread(target=watch, args=pair, daemon=True) for pair in ((tcp, "tcp"), (udp, "udp"))]
        for watcher in watchers:
            watcher.start()
        yield made
        for one in (tcp, udp):
            one.shutdown(socket.SHUT_RDWR) if one is tcp else one.close()


# -- the network ----------------------------------------------------------------------------------------------------

BY_SOCKET = """
import socket
for kind, do in ((socket.SOCK_STREAM, "connect"), (socket.SOCK_DGRAM, "sendto")):
    for family, address in ((socket.AF_INET, ("127.0.0.1", PORT)), (socket.AF_INET6, ("::ffff:127.0.0.1", PORT))):
        try:
            one = socket.socket(family, kind)
            if do == "connect":
                one.connect(address)
                print("reached")
            one.sendto(b"x", address)  # it may go to a private loopback
        except OSError:
            pass
"""
BY_CTYPES = """
import ctypes, struct, socket
libc = ctypes.CDLL(None)
for kind in (1, 2):
    fd = libc.socket(2, kind, 0)
    address = struct.pack("=HH4s8x", 2, socket.htons(PORT), bytes([127, 0, 0, 1]))
    if fd >= 0 and libc.connect(fd, address, 16) == 0:
        libc.send(fd, b"x", 1, 0)
        if kind == 1:
            print("reached")
"""
BY_RAW_CALL = """
import ctypes, platform, struct, socket
libc = ctypes.CDLL(None)
SOCKET, CONNECT = {"x86_64": (41, 42), "aarch64": (198, 203)}[platform.machine()]
for kind in (1, 2):
    fd = libc.syscall(SOCKET, 2, kind, 0)
    address = struct.pack("=HH4s8x", 2, socket.htons(PORT), bytes([127, 0, 0, 1]))
    if fd >= 0 and libc.syscall(CONNECT, fd, address, 16) == 0 and libc.send(fd, b"x", 1, 0) and kind == 1:
        print("reached")
"""
BY_EMPTY_CHILD = """
import subprocess, sys
code = "import socket; socket.create_connection(('127.0.0.1', PORT), 3)"
subprocess.run([sys.executable, "-I", "-c", code], env={}, stderr=subprocess.DEVNULL)
subprocess.run(["/bin/bash", "-c", "echo x > /dev/tcp/127.0.0.1/PORT; echo x > /dev/udp/127.0.0.1/PORT"], env={},
               stderr=subprocess.DEVNULL)
"""
BY_IO_URING = """
import ctypes
if ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0:
    print("reached: io_uring is there")
"""


@pytest.mark.parametrize(
    "code",
    [BY_SOCKET, BY_CTYPES, BY_RAW_CALL, BY_EMPTY_CHILD, BY_IO_URING],
    ids=["socket", "ctypes", "raw call", "child without environment", "io_uring"],
)
def test_no_way_leads_to_the_network(box: Served, code: str, listener: Listener) -> None:
    answer = box.execute(code.replace("PORT", str(listener.port)))
    assert (answer["stdout"], listener.reached()) == ("", [])


STATIC = r"""
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
int main(void) {
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = {htonl(0x7f000001)}};
        int fd = socket(AF_INET, kind, 0);
        if (fd >= 0 && connect(fd, (void *)&to, sizeof to) == 0 && send(fd, "x", 1, 0) && kind == SOCK_STREAM)
            puts("reached");
    }
}
"""


@pytest.mark.skipif(not HAS_GCC, reason="no C compiler")
def test_a_static_program_cannot_connect_either(box: Served, listener: Listener) -> None:
    code = f"cat > p.c <<'E'\n{STATIC.replace('PORT', str(listener.port))}\nE\ngcc -static -o p p.c && ./p && echo ran"
    assert box.out(code, "shell", timeout=60) == "ran\n"
    assert listener.reached() == []


def test_the_sandbox_s_own_endpoint_cannot_be_reached(box: Served) -> None:
    code = f"import urllib.request as r\nprint(r.urlopen('http://127.0.0.1:{box.port}/health', timeout=3).read())"
    assert box.execute(code)["stdout"] == ""


@pytest.mark.skipif(not HAS_GCC or os.uname().machine != "x86_64", reason="needs gcc on x86_64")
def test_the_32_bit_door_is_closed(box: Served) -> None:
    code = r"""cat > p.c <<'E'
#include <stdio.h>
int main(void) { long n; __asm__ volatile("int $0x80" : "=a"(n) : "a"(20)); printf("pid %ld\n", n); return 0; }
E
gcc -o p p.c && ./p"""
    answer = box.execute(code, "shell", timeout=60)
    assert "pid" not in answer["stdout"] and answer["process_status"] == "error"


# -- files and the environment ----------------------------------------------------------------------------------------


def test_the_service_s_environment_cannot_be_read(box: Served) -> None:
    code = """
import os
seen = [str(dict(os.environ))]
try:
    pids = os.listdir("/proc")
except OSError:
    pids = []
for pid in [p for p in pids if p.isdigit()] + ["self", "PID"]:
    for name in ("environ", "mem", "maps", "fd/0", "root/etc/shadow", "cwd/x"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                seen.append(file.read(100_000).decode("latin-1"))
        except (OSError, ValueError):
            pass
print("hunter2" in "".join(seen))
""".replace("PID", str(box.process.pid))
    assert box.out(code) == "False\n"


def test_files_of_others_cannot_be_read_or_written(box: Served) -> None:
    secret = box.place / "secret"
    secret.write_text("hunter2")
    os.chmod(secret, 0o666)
    places = [str(secret), str(box.place / "log"), "/etc/shadow", "/root/.bashrc", "/var/log/dpkg.log", "/home"]
    code = f"""
import os
for path in {places!r}:
    for mode in ("r", "a"):
        try:
            open(path, mode).close()
            print(mode, path)
        except OSError:
            pass
for path in ("/", "/usr", "/etc", "/opt", "/var/tmp", "/dev", {str(box.place)!r}):
    try:
        open(path + "/intruder", "w").close()
        print("w", path)
    except OSError:
        pass
"""
    assert box.out(code) == ""
    assert secret.read_text() == "hunter2"


def test_other_workers_files_cannot_be_seen(box: Served) -> None:
    session = box.new_session()
    where = box.cell("import os; open('mine', 'w').write('hunter2'); print(os.getcwd())", session)["stdout"].strip()
    patterns = (f"{where}/mine", "../*/home/mine", "../" * 10 + "*/mine", "/tmp/**/mine", f"{box.place}/**/mine")
    code = f"""
import glob, os
for pattern in {patterns!r}:
    for path in glob.glob(pattern, recursive=True)[:3]:
        try:
            print(open(path).read())
        except OSError:
            pass
"""
    assert box.out(code, timeout=60) == ""
    box.ask("DELETE", f"/sessions/{session}")


def test_links_in_the_scratch_lead_nowhere_and_do_no_harm(box: Served) -> None:
    target = box.place / "precious"
    target.mkdir(exist_ok=True)
    os.chmod(target, 0o777)
    (target / "f").write_text("kept")
    code = f"""
import os
for path in ("/etc", {str(target)!r}, "/", "/proc/1/root", {str(target / "f")!r}):
    os.symlink(path, "link" + path.replace("/", "_"))
    try:
        os.link(path, "hard" + path.replace("/", "_"))
        print("linked", path)
    except OSError:
        pass
os.mkdir("d"); os.symlink("..", "d/up"); os.chmod("d", 0)
for name in os.listdir("."):
    try:
        open(name + "/x", "w").close()
        print("wrote through", name)
    except OSError:
        pass
"""
    assert box.out(code) == ""
    for _ in range(6):  # every worker has emptied its scratch since
        box.out("pass")
    assert (target / "f").read_text() == "kept"


def test_the_next_program_does_not_see_files_of_the_last(box: Served) -> None:
    for _ in range(6):
        code = """
import os
found = []
for top in (os.getcwd(), os.environ["TMPDIR"], "/dev/shm"):
    try:
        found += [name for name in os.listdir(top) if not os.path.ismount(f"{top}/{name}")]  # of the server, read-only
        open(os.path.join(top, "left"), "w").close()
    except OSError:
        pass
print(found)
"""
        assert box.out(code) == "[]\n"


# -- processes --------------------------------------------------------------------------------------------------------


def test_other_processes_cannot_be_traced_or_read(box: Served) -> None:
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, os.getppid(), {box.process.pid}):
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("traced", pid)
    local = ctypes.create_string_buffer(8)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(local), 8)
    if libc.process_vm_readv(pid, vector, 1, vector, 1, 0) > 0:
        print("read", pid)
    try:
        open(f"/proc/{{pid}}/mem", "rb")
        print("opened", pid)
    except OSError:
        pass
"""
    assert box.out(code) == ""


def test_signals_reach_neither_the_service_nor_the_worker(box: Served) -> None:
    code = f"""
import os, signal
for pid in (os.getppid(), {box.process.pid}, {os.getpid()}):
    for signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSTOP, signal.SIGCHLD):
        try:
            os.kill(pid, signum)
        except OSError:
            pass
print("still here", flush=True)
"""
    before = lost_workers(box)
    assert box.out(code) == "still here\n"
    assert box.out("print(1)") == "1\n"
    assert box.process.poll() is None
    assert lost_workers(box) == before


def test_limits_and_scheduling_of_the_service_cannot_be_changed(box: Served) -> None:
    def state() -> tuple[object, ...]:
        pid = box.process.pid
        limits = Path(f"/proc/{pid}/limits").read_text()
        return limits, os.sched_getaffinity(pid), os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)

    before = state()
    code = f"""
import os, resource
for do in (
    lambda: resource.prlimit({box.process.pid}, resource.RLIMIT_CPU, (1, 1)),
    lambda: resource.prlimit({box.process.pid}, resource.RLIMIT_NOFILE, (5, 5)),
    lambda: os.sched_setaffinity({box.process.pid}, [max(os.sched_getaffinity(0))]),
    lambda: os.sched_setscheduler({box.process.pid}, os.SCHED_IDLE, os.sched_param(0)),
    lambda: os.setpriority(os.PRIO_PROCESS, {box.process.pid}, 19),
    lambda: os.setpriority(os.PRIO_USER, 0, 19),
):
    try:
        do()
    except OSError:
        pass
print("tried")
"""
    assert box.out(code) == "tried\n"
    assert state() == before


def lost_workers(box: Served) -> str:
    lines = box.ask("GET", "/metrics")["text"].splitlines()
    return next(line for line in lines if line.startswith("muster_sandbox_workers_lost_total "))


def test_set_user_id_programs_give_nothing(box: Served) -> None:
    code = """
import os, subprocess
with open("copy", "wb") as file:
    file.write(open("/bin/sh", "rb").read())
os.chmod("copy", 0o6755)
print(subprocess.run(["./copy", "-c", "id -u"], capture_output=True, text=True).stdout.strip() == str(os.getuid()))
asked = subprocess.run(["/bin/su", "-c", "id -u"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
print(asked.stdout)
"""
    assert box.out(code) == "True\n\n"


def test_programs_have_no_capabilities(strong: Served) -> None:
    code = "print([l.split()[1].strip('0') for l in open('/proc/self/status') if l.startswith('Cap')])"
    assert strong.out(code) == "['', '', '', '', '']\n"


def test_a_root_service_runs_programs_as_another_user(box: Served) -> None:
    assert os.getuid() != 0 or box.out("import os; print(os.getuid())") != "0\n"
    code = "import os\ntry:\n    os.setuid(0)\n    print('root')\nexcept OSError:\n    print('no')"
    assert box.out(code) == "no\n"


@pytest.mark.parametrize(
    "call",
    [
        "libc.unshare(0x10000000)",
        "libc.unshare(0x00020000)",
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "libc.chroot(b'.')",
        "libc.setns(3, 0)",
        "libc.sethostname(b'x', 1)",
        "libc.syscall(321, 0, 0, 0)",
        "libc.syscall(250, 0, 0, 0)",
        "libc.personality(0x0040000)",
        "libc.shmget(0, 4096, 0o1666)",
        "libc.syscall(56, 0x10000011, 0, 0, 0, 0)",
        "libc.syscall(435, b'\\0' * 88, 88)",
    ],
)
def test_calls_that_open_new_worlds_are_refused(box: Served, call: str) -> None:
    if os.uname().machine != "x86_64" and "syscall" in call:
        pytest.skip("numbers of x86_64")
    assert box.out(f"import ctypes\nlibc = ctypes.CDLL(None)\nprint({call})") == "-1\n"


def test_memory_files_count_for_a_limit_or_are_refused(box: Served) -> None:
    code = """
import os
try:
    fd = os.memfd_create("x")
    print("made")
except OSError:
    print("refused")
"""
    counted = "cgroup memory" in box.facts["isolation"]["mechanisms"]
    assert box.out(code) == ("made\n" if counted else "refused\n")


def test_nothing_of_one_program_is_in_the_memory_of_the_next(servers: Callable[[str], Served]) -> None:
    """Workers are used again, and executions forked from them: what one was sent must not be there for the next."""
    box = servers("user")  # its /proc lets a program read its own memory
    for number in range(6):
        box.execute(f"canary = 'canary-{number}-' + 'x' * 100; print(canary)", std_input=f"canary-{number}-stdin")
    code = """
import re
found, looked = set(), 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps").readlines():
        first, last = (int(x, 16) for x in line.split()[0].split("-"))
        if "rw" in line.split()[1] and last - first < 1 << 28:
            try:
                memory.seek(first)
                data = memory.read(last - first)
            except (OSError, ValueError):
                continue
            looked += len(data)
            found.update(re.findall(rb"cana" + rb"ry-[0-9]-[a-z]", data))
print(found, looked > 1 << 20)
"""
    assert box.out(code) == "set() True\n"


def test_the_reported_mechanisms_are_in_force(box: Served) -> None:
    isolation = box.ask("GET", "/health")["isolation"]
    assert {"seccomp", "no_new_privs", "rlimits"} <= set(isolation["mechanisms"])
    assert (isolation["level"] == "full") == ("net namespace" in isolation["mechanisms"])
    assert isolation == box.facts["isolation"]


SPECIAL_FILES = """
import fcntl, os, socket
for path in ("SOCKET",):
    try:
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
        print("connected to", path)
    except OSError:
        pass
try:
    os.write(os.open("PIPE", os.O_WRONLY | os.O_NONBLOCK), b"from inside")
    print("wrote to a pipe")
except OSError:
    pass
print(open("FILE").read())
fcntl.flock(os.open("FILE", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_sockets_pipes_and_locks_in_what_is_shown_read_only_lead_nowhere(
    own: Callable[..., Served], level: str, open_directory: Path
) -> None:
    paths = {name: str(open_directory / name.lower()) for name in ("SOCKET", "PIPE", "FILE")}
    Path(paths["FILE"]).write_text("shown")
    os.mkfifo(paths["PIPE"])
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(paths["SOCKET"])
        listening.listen()
        for path in paths.values():
            os.chmod(path, 0o777)
        reading = os.open(paths["PIPE"], os.O_RDONLY | os.O_NONBLOCK)
        held = os.open(paths["FILE"], os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        served = own(level, read_only=[str(open_directory)])
        code = SPECIAL_FILES
        for name, path in paths.items():
            code = code.replace(f'"{name}"', f'"{path}"')
        answer = served.execute(code)
        assert answer["stdout"] == "shown\n"
        if served.facts["isolation"]["level"] == "full":  # an overlay has locks for itself; Landlock does not know them
            assert answer["stderr"] == "", answer
        os.close(reading)
        os.close(held)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can read, outside /tmp."""
    place = Path(tempfile.mkdtemp(prefix="muster-test-", dir="/var/tmp"))
    os.chmod(place, 0o755)
    yield place
    shutil.rmtree(place)


def test_watches_of_files_are_limited_so_that_the_user_keeps_some(servers: Callable[[str], Served]) -> None:
    code = """
import ctypes
libc, count = ctypes.CDLL(None), 0
while count < 1000 and libc.inotify_init() >= 0:
    count += 1
print(count < 100)
"""
    assert servers("user").out(code) == "True\n"
