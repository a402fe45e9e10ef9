"""The attacks of docs/reference/sandbox-attacks.md: programs that try to break out or to use more than they may.

An attack prints BROKE for everything that it could do. `expects` is the word of the table for its failure: stopped (it
was refused), or ended (the program was ended, or its error reported, because of a limit).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.running import wait_for
from tests.sandbox.serving import survivors

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

STOPPED, ENDED, OPEN = "stopped", "ended", "**open**"
LIMITS = {"scratch_mb": 32, "memory_mb": 256, "processes": 32}
TRY = """
import ctypes, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
SERVER, WORKER, PORT, PLACE, SHOWN = {server}, os.getppid(), {port}, {place!r}, {shown!r}
def attempt(what, do):
    try:
        if do() is not False:
            print("BROKE", what, flush=True)
    except (OSError, ValueError, AttributeError):
        pass
"""


@dataclass(frozen=True)
class Attack:
    """`text` is its row of the table."""

    text: str
    expects: str
    code: str
    timeout: float = 20.0
    session: bool = False


ATTACKS = (
    Attack(
        "connect to the host's ports by TCP, send by UDP",
        STOPPED,
        """
def send():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT))
    return False  # the listener on the host decides
attempt("udp", send)
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", PORT), 3))
""",
    ),
    Attack(
        "read a file of the host that every user may read",
        STOPPED,
        "attempt('read', lambda: open(PLACE + '/secret').read())",
    ),
    Attack(
        "write outside the scratch",
        STOPPED,
        "for path in (PLACE, '/', '/usr', '/etc', '/var/tmp', SHOWN):\n"
        "    attempt(path, lambda: open(path + '/intruder', 'w').close())",
    ),
    Attack(
        "read environment and memory of the server",
        STOPPED,
        "for name in ('environ', 'mem', 'maps', 'fd/0'):\n"
        "    attempt(name, lambda: open('/proc/%d/%s' % (SERVER, name), 'rb').read(1))",
    ),
    Attack(
        "trace the worker or the server, read their memory",
        STOPPED,
        """
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
for pid in (WORKER, SERVER):
    attempt("trace", lambda: libc.ptrace(16, pid, 0, 0) == 0)
    attempt("read", lambda: libc.process_vm_readv(pid, vector, 1, vector, 1, 0) > 0)
""",
    ),
    Attack(
        "end the worker or the server by signals",
        STOPPED,
        "for pid in (WORKER, SERVER):\n    libc.kill(pid, 9)  # what happens to them decides",
    ),
    Attack(
        "change limits, CPUs or priority of the server or the worker",
        STOPPED,
        """
for pid in (SERVER, WORKER):
    attempt("limit", lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)))
    attempt("cpus", lambda: os.sched_setaffinity(pid, [max(os.sched_getaffinity(0))]))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
attempt("priority of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
""",
    ),
    Attack(
        "make namespaces, mounts, kernel keys, BPF programs, io_uring",
        STOPPED,
        """
attempt("unshare", lambda: libc.unshare(0x10000000) == 0)
attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"") == 0)
for number in (321, 425, 250, 298, 323, 304):
    attempt(str(number), lambda: libc.syscall(number, 0, 0, 0, 0, 0) >= 0)
""",
    ),
    Attack(
        "connect to a socket of the host, write to a pipe of the host",
        STOPPED,
        """
attempt("socket", lambda: socket.socket(socket.AF_UNIX).connect(SHOWN + "/socket"))
attempt("pipe", lambda: os.write(os.open(SHOWN + "/pipe", os.O_WRONLY | os.O_NONBLOCK), b"x"))
""",
    ),
    Attack(
        "spoil the scratch for the next program (modes, deep trees, leftovers)",
        STOPPED,
        "os.makedirs('/'.join(['d'] * 300))\nopen('left', 'w').close()\nos.chmod('.', 0o500)",
    ),
    Attack(
        "leave a process behind (setsid, double fork)",
        STOPPED,
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["MARK", "600"])
    os._exit(0)
time.sleep(0.5)
""",
    ),
    Attack("a fork bomb", ENDED, "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass", 3),
    Attack("memory of one process", ENDED, "held = bytearray(1 << 30)"),
    Attack(
        "memory of many processes",
        ENDED,
        """
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(100 << 20)
        for page in range(0, len(held), 4096):
            held[page] = 1
        time.sleep(10)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(8)))
""",
    ),
    Attack(
        "shared memory that is in no resident set",
        ENDED,
        """
import mmap
held = []
for _ in range(6):
    held.append(mmap.mmap(-1, 128 << 20))
    for page in range(0, 128 << 20, 4096):
        held[-1][page] = 1
    held[-1].madvise(mmap.MADV_DONTNEED)
time.sleep(5)
print("BROKE")
""",
    ),
    Attack(
        "buffers of sockets",
        ENDED,
        """
for _ in range(8):
    if os.fork() == 0:
        held = []
        try:
            while True:
                held.append(socket.socketpair())
                for one in held[-1]:
                    one.setblocking(False)
                    try:
                        while True:
                            one.send(bytes(65536))
                    except BlockingIOError:
                        pass
        except OSError:
            time.sleep(15)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(8)))
""",
        60,
    ),
    Attack(
        "fill the disk with files",
        ENDED,
        "for number in range(100):\n    open('f%d' % number, 'wb').write(bytes(1 << 20))\n"
        "time.sleep(5)\nprint('BROKE')",
    ),
    Attack(
        "fill the disk with directories",
        ENDED,
        "for number in range(60000):\n    os.mkdir('d%d' % number)\ntime.sleep(5)\nprint('BROKE')",
        60,
    ),
    Attack("a crash that looks like success", ENDED, "print('right')\nsys.stdout.flush()\nos.kill(os.getpid(), 11)"),
    Attack(
        "a cell that claims to have ended and goes on",
        ENDED,
        """os.write(3, b'{"event": "done", "cell": 2, "failed": false}')\nwhile True: pass""",
        4,
        True,
    ),
)


class Target:
    """A server, and things of the host that attacks look for: a secret, ports, a socket and a pipe."""

    def __init__(self, start: Callable[[str], Served]) -> None:
        """`start` starts a server that shows this directory read-only."""
        self._start = start
        self._opened = ExitStack()
        self.shown = Path(self._opened.enter_context(TemporaryDirectory(prefix="muster-attacks-", dir="/var/tmp")))
        self._tcp = self._opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._udp = self._opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._udp.bind(self._tcp.getsockname())
        listening = self._opened.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(self.shown / "socket"))
        listening.listen()
        os.mkfifo(self.shown / "pipe")
        for name in ("socket", "pipe"):
            os.chmod(self.shown / name, 0o777)
        os.chmod(self.shown, 0o755)
        self._pipe = os.open(self.shown / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        self._opened.callback(os.close, self._pipe)
        for one in (self._tcp, self._udp):
            one.setblocking(False)
        self.served = self._start_server()

    def _start_server(self) -> Served:
        served = self._start(str(self.shown))
        secret = served.place / "secret"
        secret.write_text("hunter2")
        os.chmod(secret, 0o666)
        return served

    def close(self) -> None:
        self.served.clean()
        self._opened.close()

    def attack(self, attack: Attack) -> str:
        """Run the attack; return the word for its result. A server that was broken is replaced."""
        mark = "mark-" + self.served.new_session()
        place, port = str(self.served.place), self._tcp.getsockname()[1]
        values = {"server": self.served.process.pid, "port": port, "place": place, "shown": str(self.shown)}
        code = TRY.format(**values) + attack.code.replace("MARK", mark)
        try:
            broke = self._run_session(code, attack) if attack.session else self._run(code, attack)
            broke = broke or self._was_reached() or bool(survivors(mark)) or not self._serves()
        except (OSError, HTTPException, AssertionError):
            broke = True
        if broke:
            self.served.clean()
            self.served = self._start_server()
        return OPEN if broke else attack.expects

    def _serves(self) -> bool:
        """Return whether every worker runs programs as before."""
        texts = [self.served.out("open('f', 'w').write('fine'); print(open('f').read())") for _ in range(6)]
        return texts == ["fine\n"] * 6 and self.served.ask("GET", "/health")["status"] == "healthy"

    def _was_reached(self) -> bool:
        """Return whether a connection or a datagram has arrived on the host."""
        reached = False
        with suppress(BlockingIOError):
            self._tcp.accept()[0].close()
            reached = True
        with suppress(BlockingIOError):
            reached = bool(self._udp.recv(10)) or reached
        return reached

    def _run(self, code: str, attack: Attack) -> bool:
        answer = self.served.execute(code, timeout=attack.timeout, report=True)
        if "BROKE" in answer["stdout"] or answer["reason"] == "lost":
            return True
        has_error = answer["process_status"] != "completed" or "Error" in answer["stderr"]
        return attack.expects == ENDED and not has_error

    def _run_session(self, code: str, attack: Attack) -> bool:
        name = self.served.new_session()
        self.served.cell("pass", name)  # its start may take long on a busy machine
        self.served.cell(code, name, timeout=attack.timeout)
        wait_for("the end of the session", lambda: name not in self.served.ask("GET", "/sessions")["sessions"])
        return False
