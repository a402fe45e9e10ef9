"""The agent's entry point: `python agent.pyz RUN_DIR`, with its node index and attempt in the environment.

The agent is a child of the process that was started, which becomes its guardian (see guardian.py).

The archive has further entry points: `agent.pyz attach ...`, `agent.pyz idle ...`, `agent.pyz sandbox -`,
`agent.pyz endpoint -`, and `agent.pyz orphan ...`, which an agent becomes after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any

from muster.agent import event_loop
from muster.agent.abandoned_job import cancel_abandoned_job
from muster.agent.check_process import CheckProcess, start_check_process
from muster.agent.follower import Follower
from muster.agent.guardian import FORWARDED_SIGNALS, STOP_SIGNALS, AgentSignals, Guardian, start_guardian
from muster.agent.health.limits import raise_limits
from muster.agent.job import Identity
from muster.agent.leaderless import has_outcome
from muster.agent.node_log import AGENT_LIBRARIES, log_to_stderr
from muster.agent.run_directory import RunDirectoryError, retried
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.process import become_subreaper, lease, signal_name, sweep

logger = logging.getLogger(__name__)

ORPHAN = "orphan"
OTHER_ENTRIES = {  # imported when used: most agents need none of them
    "attach": "muster.agent.session.attach",
    "idle": "muster.agent.session.idle",
    ORPHAN: "muster.agent.leaderless",
}
SERVER_ENTRIES = {"sandbox": "muster.sandbox.__main__", "endpoint": "muster.endpoint.__main__"}


def main(argv: list[str]) -> int:
    """Run this node's agent and return its exit code. No process that it started outlives it."""
    if argv[0] in OTHER_ENTRIES:
        code: int = importlib.import_module(OTHER_ENTRIES[argv[0]]).main(argv[1:])
        return code
    if argv[0] in SERVER_ENTRIES:
        sys.argv = argv
        server_code: int = importlib.import_module(SERVER_ENTRIES[argv[0]]).main()
        return server_code
    identity = Identity.from_environment(argv[0], os.environ)
    log_to_stderr(identity.host, AGENT_LIBRARIES)
    logging.raiseExceptions = False  # a message that cannot be written (a full disk) is dropped
    guardian = start_guardian(identity)
    become_subreaper()
    checks = start_check_process()
    raise_limits()
    try:
        return event_loop.run(_run(identity, guardian, checks))
    except Exception as error:
        sweep()
        _exec_leaderless(identity, error)
        raise
    finally:
        sweep()


async def _run(identity: Identity, guardian: Guardian, checks: CheckProcess) -> int:
    try:
        token = await retried(identity.run.token, _read_token, identity)
    except RunDirectoryError as error:
        logger.error("%s", error)
        return INFRASTRUCTURE_FAILED
    follower, signals = Follower(identity, token, lease.hold(), guardian, checks), AgentSignals(guardian)
    _handle_signals(follower, signals)
    code = await follower.run()
    if not follower.dismissed and await asyncio.to_thread(has_outcome, identity.attempt):
        await _run_until_signalled(cancel_abandoned_job(identity), signals)
    return code


def _read_token(identity: Identity) -> bytes:
    with open(identity.run.token, "rb") as file:
        return file.read().strip()


async def _run_until_signalled(work: Coroutine[Any, Any, None], signals: AgentSignals) -> None:
    """Cancel the work on SIGTERM or SIGINT: no process of the job is left here that would need time to end."""
    task = asyncio.ensure_future(work)
    for signum in STOP_SIGNALS:
        signals.handle(signum, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _exec_leaderless(identity: Identity, error: Exception) -> None:
    """After a crash, become a process that ends the run if no node leads it. exec closes all connections.

    Before the first leader has published, and on the host of the job script, the end of this process is enough.
    """
    if identity.node_index == FIRST_LEADER or not identity.attempt.terms():
        return
    logger.error("the agent crashed", exc_info=error)
    reason = f"the agent of {identity.host} crashed: {error!r}"
    logging.shutdown()  # exec ends the thread that writes messages
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-I", "-S", identity.run.agent, ORPHAN, identity.run.root, reason])


def _handle_signals(follower: Follower, signals: AgentSignals) -> None:
    for signum in STOP_SIGNALS:
        signals.handle(signum, partial(follower.on_signal, signum, f"the job received {signal_name(signum)}"))
    for signum in FORWARDED_SIGNALS:  # Slurm sends a checkpoint signal to every task
        signals.handle(signum, partial(follower.pass_on_signal, signum))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
