"""The engine's side of the zygote: it starts the zygote in the scope, has it fork workers, and reports its loss.

The zygote is an interpreter that may lack Muster: it gets the sources of the jail, and a bootstrap that runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any, Callable

from muster.process import Scope, source_of
from muster.sandbox.jail import wire
from muster.sandbox.settings import SandboxSettings

START_TIMEOUT_S = 120.0  # imports from a cold network filesystem are slow
THREAD_COUNT_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
JAIL_MODULES = (
    "confine",
    "execution",
    "gvisor",
    "kernel",
    "landlock",
    "notebook",
    "program",
    "repl",
    "rootfs",
    "seccomp",
    "session",
    "state",
    "tree",
    "usage",
    "wire",
    "worker",
    "zygote",
)
PROCESS_MODULES = ("muster.process.memory_file", "muster.process.proctree", "muster.process.file_trees")
PACKAGES = ("muster", "muster.process", "muster.sandbox", "muster.sandbox.jail")

# Its stdin is a socket; the first packet carries a file descriptor: modules and config as JSON.
BOOTSTRAP = """\
import json, os, socket, sys
from importlib.machinery import ModuleSpec
channel = socket.socket(fileno=os.dup(0))
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
os.close(null)
data, fds, _, _ = socket.recv_fds(channel, 65536, 1)
with os.fdopen(fds[0], "rb") as file:
    sent = json.load(file)
class FromMemory:
    of_sandbox = True
    def find_spec(self, name, path=None, target=None):
        if name not in sent["modules"]:
            return None
        return ModuleSpec(name, self, origin="<sandbox>", is_package=sent["modules"][name] is None)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(sent["modules"][module.__name__] or "", "<sandbox>/" + module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, FromMemory())
from muster.sandbox.jail.zygote import main
main(channel, sent["config"])
"""


class SandboxError(Exception):
    """The sandbox cannot start or cannot provide a worker."""


class Zygote:
    """One warm interpreter; `facts` is its ready message."""

    def __init__(self, channel: socket.socket, pid: int, facts: dict[str, Any]) -> None:
        self.channel, self.pid, self.facts = channel, pid, facts

    @classmethod
    async def start(
        cls,
        scope: Scope,
        settings: SandboxSettings,
        on_lost: Callable[[], None],
        sandbox: Sequence[str] | None = None,
        on_started: Callable[[int], None] = lambda pid: None,
    ) -> Zygote:
        """Start the interpreter and wait until it has imported everything; call back with the pid before that.

        With `sandbox`, a command that runs it in a sandbox, it becomes the first worker that it is to fork.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            owned = await scope.spawn(
                command(settings) if sandbox is None else sandbox,
                env=environment(settings),
                cwd="/",
                stdin=theirs.fileno(),
                stderr=2,
            )
        config = {"preload": settings.preload, "read_only": settings.read_only, "becomes_worker": sandbox is not None}
        on_started(owned.pid)
        fd = wire.in_memory([bundle(config)])
        with contextlib.suppress(ConnectionError):  # it has exited, which the read below detects
            wire.send(ours, {}, (fd,))
        os.close(fd)
        try:
            facts = await asyncio.wait_for(_next_message(ours), START_TIMEOUT_S)
        except asyncio.TimeoutError:
            facts = {"event": "failed", "why": f"{settings.python} was not ready after {START_TIMEOUT_S:g} s"}
        except BaseException:
            owned.signal(signal.SIGKILL)
            ours.close()
            raise
        if facts["event"] != "ready":
            owned.signal(signal.SIGKILL)
            ours.close()
            raise SandboxError(f"the warm interpreter ({settings.python}) did not start: {facts['why']}")
        zygote = cls(ours, owned.pid, facts)
        asyncio.get_running_loop().add_reader(ours, zygote._on_readable, on_lost)
        return zygote

    def _on_readable(self, on_lost: Callable[[], None]) -> None:
        """Handle the end of the zygote: after its ready message it sends nothing."""
        self.close()
        on_lost()

    def fork_worker(self, plan: dict[str, Any], control: int) -> None:
        wire.send(self.channel, plan, (control,))

    def close(self) -> None:
        if self.channel.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self.channel)
            self.channel.close()


async def _next_message(channel: socket.socket) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    try:
        data = await loop.sock_recv(channel, wire.PACKET)
    except ConnectionError:  # it has exited without reading what it was sent
        data = b""
    if not data:
        return {"event": "failed", "why": "it exited at once; see the log above"}
    message: dict[str, Any] = wire.decoded(data)
    return message


def command(settings: SandboxSettings) -> list[str]:
    """Return the command of the interpreter, which reads its sources from stdin."""
    return [settings.python, "-I", "-X", "utf8", "-c", BOOTSTRAP]


def bundle(config: dict[str, object]) -> bytes:
    """Return the JSON that the bootstrap reads."""
    names = [*PROCESS_MODULES, *(f"muster.sandbox.jail.{name}" for name in JAIL_MODULES)]
    modules: dict[str, str | None] = dict.fromkeys(PACKAGES)
    modules.update({name: source_of(importlib.import_module(name)) for name in names})
    return json.dumps({"modules": modules, "config": config}).encode()


def environment(settings: SandboxSettings) -> dict[str, str]:
    """Return the environment of programs; nothing of the service's environment is in it."""
    interpreter = os.path.dirname(os.path.abspath(settings.python))
    path = dict.fromkeys([interpreter, "/usr/local/bin", "/usr/bin", "/bin"])
    return {
        "PATH": ":".join(path),
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(THREAD_COUNT_VARIABLES, "1"),
        **dict(settings.env),
    }
