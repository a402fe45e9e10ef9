"""The agent's entry point: `python agent.pyz RUN_DIR`, with its rank and attempt in the environment.

The same file holds what else runs on a node: `agent.pyz attach ...`, `agent.pyz idle ...` and `agent.pyz sandbox -`.
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

from muster.agent.follower import Follower
from muster.agent.health.limits import raise_limits
from muster.agent.job import Identity
from muster.agent.leaderless import end_left_job, has_outcome
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
PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG)


def main(argv: list[str]) -> int:
    """Run this node's agent to its end; whatever happens, nothing it started outlives it."""
    if argv[0] in OTHER_ENTRIES:
        code: int = importlib.import_module(OTHER_ENTRIES[argv[0]]).main(argv[1:])
        return code
    if argv[0] == SANDBOX:
        sys.argv = argv
        served: int = importlib.import_module("muster.sandbox.__main__").main()
        return served
    identity = Identity.from_environment(argv[0], os.environ)
    log_to_stderr(identity.host)
    logging.raiseExceptions = False  # a message that cannot be written (a full disk) is dropped
    become_subreaper()
    raise_limits()
    try:
        return asyncio.run(_run(identity))
    except Exception as error:
        sweep()
        _become_orphan(identity, error)
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
        await _until_signalled(end_left_job(identity))
    return code


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Nothing runs here any more: when Slurm ends the job, there is nothing to wait for."""
    working, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, working.cancel)
    await asyncio.wait([working])
    if not working.cancelled():
        working.result()


def _become_orphan(identity: Identity, error: Exception) -> None:
    """After a crash: see to it that the run ends if no other node leads it. By exec: our connections end with that.

    Where no leader has published yet, and on the host of the job script, the end of this process says enough.
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
    for signum in PASSED_ON:  # a checkpoint signal of Slurm's comes to every task
        loop.add_signal_handler(signum, _forward_signal, follower, signum)


def _forward_signal(follower: Follower, signum: int) -> None:
    """The leader does, and nobody else."""
    if follower.leader is not None:
        follower.leader.forward_signal(signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
