"""The check before the first request: a program in the sandbox reports whether it runs and whether it is isolated."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.sandbox.engine.admission_queue import PROGRAM
from muster.sandbox.engine.user_ids import has_users
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.models import Program, ProgramStep

if TYPE_CHECKING:
    from muster.sandbox.engine.engine import Engine

TIMEOUT_S = 30.0

# Prints the forbidden things that it could do.
TEST_PROGRAM = """
import json, os, socket, sys
import encodings.idna  # not imported yet: can the library be read?
open("probe", "w").write("x")
could = []
def attempt(what, do):
    try:
        do()
    except OSError:
        return
    could.append(what)
if not {network}:
    attempt("connect to the host", lambda: socket.create_connection(("127.0.0.1", {port})))
    try:  # it may succeed where the network is private: the service checks whether it receives this
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {port}))
    except OSError:
        pass
attempt("write to " + {foreign!r}, lambda: open({foreign!r} + "/intruder", "w"))
attempt("read " + {secret!r}, lambda: open({secret!r}).read())
attempt("trace the service", lambda: open("/proc/{pid}/mem", "rb"))
if {is_root} and os.getuid() == 0:
    could.append("be root")
print(json.dumps(could))
"""


class HostPort:
    """A TCP and a UDP port of the host's loopback, which no program may reach."""

    def __init__(self) -> None:
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.number: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.setblocking(False)
        with contextlib.suppress(OSError):  # another process has this number for UDP: only TCP is tried
            self._udp.bind(("127.0.0.1", self.number))

    def has_received(self) -> bool:
        try:
            return bool(self._udp.recv(1))
        except OSError:
            return False

    def __enter__(self) -> HostPort:
        return self

    def __exit__(self, *_: object) -> None:
        self._tcp.close()
        self._udp.close()


async def verify(engine: Engine) -> None:
    """Run the test program; raises SandboxError if it fails or is not isolated."""
    assert engine.pool.level is not None
    secret = os.path.join(engine.directory, "secret")
    with open(secret, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write("secret")
    with HostPort() as host_port:
        code = TEST_PROGRAM.format(
            network=engine.settings.network,
            port=host_port.number,
            foreign=engine.directory,
            secret=secret,
            pid=os.getpid(),
            is_root=os.getuid() == 0,
        )
        try:
            work = Program((ProgramStep({"do": "python", "code": code}, TIMEOUT_S),), 10_000, "python")
            (ended,) = await engine.run(work, PROGRAM)
        finally:
            os.unlink(secret)
        received = host_port.has_received() and not engine.settings.network
    if not ended.succeeded:
        reported = ended.stderr.text(2000).strip().splitlines()[-1:] or [ended.message]
        raise SandboxError(f"a first program failed in the sandbox: {reported[0]}{_hint(engine, reported[0])}")
    could = json.loads(ended.stdout.text(10_000)) + (["send a datagram to the host"] if received else [])
    if could and engine.pool.level.profile.level != "process":
        raise SandboxError(f"the sandbox does not isolate: a program could {', '.join(could)}{_root_hint(could)}")


def _hint(engine: Engine, reported: str) -> str:
    unreadable = "No module named" in reported or "Permission denied" in reported
    return f" (can every user read {engine.settings.python} and its library?)" if unreadable else ""


def _root_hint(could: Sequence[str]) -> str:
    """Return a remedy if programs run as root because the container has no other user."""
    if "be root" not in could or has_users():
        return ""
    return " (this container has no user but root: run the job as an ordinary user, or without a user namespace)"
