"""The actor that owns one program: everything the program starts is gone when the actor is, however it ends.

The program runs in a scope (muster.process), so its supervisor outlives the actor and ends all of it: after ray.kill, a
killed worker or raylet, a removed placement group. Ray does not end an actor by its own means while a method runs; so
no method but `run` takes long, and nobody needs that one.

    state       leaves on                          to
    (new)       initialize                         running | failed (nothing was started)
    running     the program ends, or stop          ended: what it left behind is ended too
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

from muster.placement.runtime.health import ProgramHealth
from muster.placement.runtime.owner import Owner
from muster.placement.runtime.probe import NONE, Probe, ask
from muster.ports.file_leases import lease_port
from muster.process import Exit, Log, ManagedProcess, Scope, SpawnError

LOST_OWNER_GRACE_S = 2.0  # for the program, when the actor is gone
LEFTOVER_GRACE_S = 2.0  # for what an ended program left behind
TAIL_BYTES = 8192
LEASED = ("port", "master_port")


class SubprocessActor:
    """Owns one program. Async throughout: a scope lives on the actor's event loop."""

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._process: ManagedProcess | None = None
        self._ended: asyncio.Future[Exit] | None = None
        self._log_file: str | None = None
        self._watch: ProgramHealth | None = None
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
        """Start the program; the answer has all that a caller wants to know, or an `error`: one round trip.

        `{port}` and `{master_port}` in arguments or environment are ports of this node, leased while the actor lives;
        `{host}` is its address; further ones are the caller's. Other braces are left as they are.
        """
        self._owner = owner
        argv = [sys.executable, *python_args] if python_args is not None else list(command or ())
        env = {**os.environ, **visible_gpus(), **subprocess_env}
        known = with_ports(substitutes or {}, [*argv, *subprocess_env.values()])
        argv = [filled_in(text, known) for text in argv]
        env.update({name: filled_in(text, known) for name, text in subprocess_env.items()})
        self._log_file = log_file or os.path.join(session_logs(), f"muster-{type(self).__name__}-{os.getpid()}.log")
        try:
            self._ended = await self._start(argv, env, lost_owner_grace)
        except (OSError, SpawnError) as error:
            await self._close(0.0)
            return {**self._facts(), "error": f"{argv[0] if argv else 'nothing'} could not be started: {error}"}
        probe = probe or Probe(NONE)
        self._watch = ProgramHealth(probe, lambda: ask(probe, known["host"], int(known.get("port", 0))))
        self._watching = asyncio.ensure_future(self._watch.run(self._ended))
        return {**known, "address": known["host"], **self._facts()}

    async def _start(self, argv: list[str], env: dict[str, str], lost_owner_grace: float) -> asyncio.Future[Exit]:
        assert self._log_file is not None
        os.makedirs(os.path.dirname(self._log_file) or ".", exist_ok=True)
        # We are no subreaper, or the supervisor would be our child, and Ray kills those.
        self._scope = await Scope(type(self).__name__, lost_owner_grace=lost_owner_grace, cgroup=True).open()
        # What a former start wrote to the log stays.
        self._process = await self._scope.spawn(argv, env=env, log=Log(self._log_file))
        self._since = time.time()
        return asyncio.ensure_future(self._follow(self._process))

    async def _follow(self, process: ManagedProcess) -> Exit:
        exit = await process.wait()
        await self._close(LEFTOVER_GRACE_S)
        return exit

    async def run(self) -> int:
        """Wait for the program's end."""
        return returncode(await asyncio.shield(self._ended)) if self._ended is not None else -1

    async def wait_for(self, seconds: float) -> int | None:
        """Wait for the program's end, but not for longer than this."""
        if self._ended is None:
            return -1
        await asyncio.wait([self._ended], timeout=seconds)
        return returncode(self._ended.result()) if self._ended.done() else None

    async def status(self) -> dict[str, Any]:
        """Whether the program runs, how it ended, where it writes; and if it has ended, what it wrote last."""
        alive = await self.is_alive()
        return {**self._facts(), "alive": alive, "log_tail": "" if alive else await self.read_log_tail()}

    async def report(self, seen: int, seconds: float) -> dict[str, Any]:
        """The program's status with its health, as soon as that is newer than `seen`, or after so many seconds."""
        assert self._watch is not None, "initialize comes first"
        await self._watch.news(seen, seconds)
        health = {"version": self._watch.version, "state": self._watch.state, "detail": self._watch.detail}
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
        """For an inventory: whose it is, too."""
        return {**self._facts(), "alive": await self.is_alive(), "owner": self._owner, "since": self._since}

    async def belongs_to(self, owner: Owner) -> None:
        """Another process has it in hand now."""
        self._owner = owner

    async def pid(self) -> int:
        return self._process.pid if self._process is not None else -1

    async def is_alive(self) -> bool:
        return self._process is not None and self._process.exit is None

    async def read_log_tail(self, num_bytes: int = TAIL_BYTES) -> str:
        return Log(self._log_file or os.devnull).tail(num_bytes)

    async def stop(self, sigterm_wait: float) -> int | None:
        """TERM, wait so long, KILL; returns when nothing is left of it."""
        await self._close(sigterm_wait)
        return returncode(await asyncio.shield(self._ended)) if self._ended is not None else None

    async def force_sigkill_subprocess(self) -> None:
        """KILL, also while a stop waits for its grace to pass."""
        await self._close(0.0)

    async def _close(self, grace: float) -> None:
        if self._scope is not None:
            await self._scope.close(grace)


def visible_gpus() -> dict[str, str]:
    """The GPUs that Ray gave this actor, for the program; Ray itself is told to leave the variable alone."""
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus)} if gpus else {}


def with_ports(known: Mapping[str, str], texts: Sequence[str]) -> dict[str, str]:
    """What stands for what on this node; a port is leased only where somebody wants one and has not been given it."""
    wanted = [name for name in LEASED if name not in known and any("{" + name + "}" in text for text in texts)]
    leased = {name: str(lease_port(holder=os.getpid())) for name in wanted}
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
    return {"host": address, **known, **leased}


def filled_in(text: str, known: Mapping[str, str]) -> str:
    """Known names in braces replaced; JSON and other braces are nobody's business.

    >>> filled_in('--port={port} --config={"a": 1}', {"port": "8000"})
    '--port=8000 --config={"a": 1}'
    """
    for name, value in known.items():
        text = text.replace("{" + name + "}", value)
    return text


def session_logs() -> str:
    """Where Ray keeps its logs on this node: they are collected with the others."""
    from ray._private import worker  # no public way from inside one

    node: Any = worker.global_worker.node
    return str(node.get_logs_dir_path())


def returncode(exit: Exit) -> int:
    """As subprocess.Popen would say it: -n for signal n. An end that nobody saw counts as a kill."""
    if exit.signal is not None:
        return -exit.signal
    return -9 if exit.code is None else exit.code
