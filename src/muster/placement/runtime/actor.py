"""The actor that owns one program: however the actor ends, the program and everything it started are killed.

The program runs in a scope (muster.process), whose supervisor outlives the actor and kills everything: after ray.kill,
a killed worker or raylet, a removed placement group. Ray does not stop an actor gracefully while a method runs; so all
methods but `run` are short, and callers can do without `run`.

    state       leaves on                          to
    (new)       initialize                         running | failed (nothing was started)
    running     the program ends, or stop          ended (everything it left behind is killed)
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from muster.placement.runtime.health import NONE, Probe, ProgramHealth, run_probe
from muster.placement.runtime.owner import Owner
from muster.ports.file_leases import lease_port
from muster.process import Exit, Log, ManagedProcess, Scope, SpawnError

LOST_OWNER_GRACE_S = 2.0  # for the program to end after SIGTERM when its actor is gone
LEFTOVER_GRACE_S = 2.0  # for processes that the program left behind
TAIL_BYTES = 8192
LEASED_PORTS = ("port", "master_port")


class SubprocessActor:
    """Owns one program. All methods are async: a scope lives on the actor's event loop."""

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._process: ManagedProcess | None = None
        self._ended: asyncio.Future[Exit] | None = None
        self._log_file: str | None = None
        self._health: ProgramHealth | None = None
        self._owner: Owner | None = None
        self._since: float | None = None

    async def initialize(
        self,
        command: Sequence[str] | None,
        subprocess_env: Mapping[str, str],
        log_file: str | None = None,
        *,
        python_args: Sequence[str] | None = None,
        lost_owner_grace: float = LOST_OWNER_GRACE_S,
        substitutes: Mapping[str, str] | None = None,
        probe: Probe | None = None,
        owner: Owner | None = None,
    ) -> dict[str, Any]:
        """Start the program; return everything a caller needs, or an `error`, in one round trip.

        `{port}` and `{master_port}` in arguments or environment are ports of this node, leased while the actor lives;
        `{host}` is its address; `substitutes` are the caller's. Other braces are left as they are.
        """
        self._owner = owner
        argv = [sys.executable, *python_args] if python_args is not None else list(command or ())
        env = {**os.environ, **visible_gpus(), **subprocess_env}
        known = with_leased_ports(substitutes or {}, [*argv, *subprocess_env.values()])
        argv = [substitute(text, known) for text in argv]
        env.update({name: substitute(text, known) for name, text in subprocess_env.items()})
        self._log_file = log_file or os.path.join(session_logs(), f"muster-{type(self).__name__}-{os.getpid()}.log")
        try:
            self._ended = await self._start(argv, env, lost_owner_grace)
        except (OSError, SpawnError) as error:
            await self._close(0.0)
            return {**self._facts(), "error": f"{argv[0] if argv else 'nothing'} could not be started: {error}"}
        probe = probe or Probe(NONE)
        self._health = ProgramHealth(probe, lambda: run_probe(probe, known["host"], int(known.get("port", 0))))
        self._health_task = asyncio.ensure_future(self._health.run(self._ended))
        return {**known, "address": known["host"], **self._facts()}

    async def _start(self, argv: list[str], env: dict[str, str], lost_owner_grace: float) -> asyncio.Future[Exit]:
        assert self._log_file is not None
        os.makedirs(os.path.dirname(self._log_file) or ".", exist_ok=True)
        # We are not a subreaper: else the supervisor would be our child, and Ray kills children.
        self._scope = await Scope(type(self).__name__, lost_owner_grace=lost_owner_grace, cgroup=True).open()
        # The log is appended to: output of former starts stays.
        self._process = await self._scope.spawn(argv, env=env, log=Log(self._log_file))
        self._since = time.time()
        return asyncio.ensure_future(self._follow(self._process))

    async def _follow(self, process: ManagedProcess) -> Exit:
        exit = await process.wait()
        await self._close(LEFTOVER_GRACE_S)
        return exit

    async def run(self) -> int:
        """Wait for the program's end and return its exit code."""
        return returncode(await asyncio.shield(self._ended)) if self._ended is not None else -1

    async def wait_for(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the program's end; return its exit code, or None."""
        if self._ended is None:
            return -1
        await asyncio.wait([self._ended], timeout=seconds)
        return returncode(self._ended.result()) if self._ended.done() else None

    async def status(self) -> dict[str, Any]:
        """Return whether the program runs, its exit, its log file, and if it has ended its last output."""
        alive = await self.is_alive()
        return {**self._facts(), "alive": alive, "log_tail": "" if alive else await self.read_log_tail()}

    async def report(self, seen: int, seconds: float) -> dict[str, Any]:
        """Return the program's status and health as soon as its version exceeds `seen`, or after `seconds`."""
        assert self._health is not None, "initialize comes first"
        await self._health.wait_for_change(seen, seconds)
        health = {"version": self._health.version, "state": self._health.state, "detail": self._health.detail}
        return {**await self.status(), **health}

    def _facts(self) -> dict[str, Any]:
        exit = self._process.exit if self._process is not None else None
        return {
            "host": socket.gethostname(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "actor_pid": os.getpid(),
            "pid": self._process.pid if self._process is not None else None,
            "exit": None if exit is None else str(exit),
            "exit_code": None if exit is None else returncode(exit),
            "log_file": self._log_file,
        }

    async def describe(self) -> dict[str, Any]:
        """Return the facts and the owner, for an inventory."""
        return {**self._facts(), "alive": await self.is_alive(), "owner": self._owner, "since": self._since}

    async def belongs_to(self, owner: Owner) -> None:
        """Change the owner to another process."""
        self._owner = owner

    async def pid(self) -> int:
        return self._process.pid if self._process is not None else -1

    async def is_alive(self) -> bool:
        return self._process is not None and self._process.exit is None

    async def read_log_tail(self, num_bytes: int = TAIL_BYTES) -> str:
        return Log(self._log_file or os.devnull).tail(num_bytes)

    async def stop(self, sigterm_wait: float) -> int | None:
        """Send TERM, wait `sigterm_wait` seconds, send KILL; return when no process is left."""
        await self._close(sigterm_wait)
        return returncode(await asyncio.shield(self._ended)) if self._ended is not None else None

    async def force_sigkill_subprocess(self) -> None:
        """Kill the program, also while a stop waits for its grace period."""
        await self._close(0.0)

    async def _close(self, grace: float) -> None:
        if self._scope is not None:
            await self._scope.close(grace)


def visible_gpus() -> dict[str, str]:
    """Return the variable with the GPUs that Ray gave this actor; Ray is configured not to set it."""
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus)} if gpus else {}


def with_leased_ports(known: Mapping[str, str], texts: Sequence[str]) -> dict[str, str]:
    """Return the substitutes of this node; a port is leased only if a text uses it and `known` lacks it."""
    wanted = [name for name in LEASED_PORTS if name not in known and any("{" + name + "}" in text for text in texts)]
    leased = {name: str(lease_port(holder=os.getpid())) for name in wanted}
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
    return {"host": address, **known, **leased}


def substitute(text: str, known: Mapping[str, str]) -> str:
    """Replace known names in braces; JSON and other braces are left as they are.

    >>> substitute('--port={port} --config={"a": 1}', {"port": "8000"})
    '--port=8000 --config={"a": 1}'
    """
    for name, value in known.items():
        text = text.replace("{" + name + "}", value)
    return text


def session_logs() -> str:
    """Return the directory of Ray's logs on this node, so that ours are collected with them."""
    from ray._private import worker  # there is no public function; private modules are imported only when needed

    node: Any = worker.global_worker.node
    return str(node.get_logs_dir_path())


def returncode(exit: Exit) -> int:
    """Return the exit code as subprocess.Popen does: -n for signal n. An unknown exit counts as SIGKILL."""
    if exit.signal is not None:
        return -exit.signal
    return -9 if exit.code is None else exit.code
