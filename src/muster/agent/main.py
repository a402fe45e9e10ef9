"""The agent's entry point: `python agent.pyz RUN_DIR`, with its rank and attempt in the environment.

The archive has further entry points: `agent.pyz attach ...`, `agent.pyz idle ...`, `agent.pyz sandbox -`, and
`agent.pyz orphan ...`, which an agent becomes after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from muster.agent.abandoned_job import cancel_abandoned_job
from muster.agent.follower import Follower
from muster.agent.health.limits import raise_limits
from muster.agent.job import Identity
from muster.agent.leaderless import has_outcome
from muster.agent.node_log import log_to_stderr
from muster.lifecycle.config import FIRST_LEADER
from muster.process import become_subreaper, lease, signal_name, sweep

logger = logging.getLogger(__name__)

ORPHAN = "orphan"
OTHER_ENTRIES = {  # imported when used: most agents need none of them
    "attach": "muster.agent.session.attach",
    "idle": "muster.agent.session.idle",
    ORPHAN: "muster.agent.leaderless",
}
SANDBOX = "sandbox"
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG)


def main(argv: list[str]) -> int:
    """Run this node's agent and return its exit code. No process that it started outlives it."""
    if argv[0] in OTHER_ENTRIES:
        code: int = importlib.import_module(OTHER_ENTRIES[argv[0]]).main(argv[1:])
        return code
    if argv[0] == SANDBOX:
        sys.argv = argv
        sandbox_code: int = importlib.import_module("muster.sandbox.__main__").main()
        return sandbox_code
    identity = Identity.from_environment(argv[0], os.environ)
    log_to_stderr(identity.host)
    logging.raiseExceptions = False  # a message that cannot be written (a full disk) is dropped
    become_subreaper()
    raise_limits()
    try:
        return asyncio.run(_run(identity))
    except Exception as error:
        sweep()
        _exec_leaderless(identity, error)
        raise
    finally:
        sweep()


async def _run(identity: Identity) -> int:
    with open(identity.run.token, "rb") as file:
        token = file.read().strip()
    follower = Follower(identity, token, lease.hold())
    _handle_signals(follower)
    code = await follower.run()
    if not follower.dismissed and has_outcome(identity.attempt):
        await _run_until_signalled(cancel_abandoned_job(identity))
    return code


async def _run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Cancel the work on SIGTERM or SIGINT: no process of the job is left here that would need time to end."""
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _exec_leaderless(identity: Identity, error: Exception) -> None:
    """After a crash, become a process that ends the run if no node leads it. exec closes all connections.

    Before the first leader has published, and on the host of the job script, the end of this process is enough.
    """
    if identity.rank == FIRST_LEADER or not identity.attempt.terms():
        return
    logger.error("the agent crashed", exc_info=error)
    reason = f"the agent of {identity.host} crashed: {error!r}"
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-I", "-S", identity.run.agent, ORPHAN, identity.run.root, reason])


def _handle_signals(follower: Follower) -> None:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, follower.on_signal, signum, f"the job received {signal_name(signum)}")
    for signum in FORWARDED_SIGNALS:  # Slurm sends a checkpoint signal to every task
        loop.add_signal_handler(signum, _forward_signal, follower, signum)


def _forward_signal(follower: Follower, signum: int) -> None:
    """Forward the signal to the driver if this node leads; the other agents ignore it."""
    if follower.leader is not None:
        follower.leader.forward_signal(signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
