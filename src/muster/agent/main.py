"""The agent's entry point: `python agent.pyz RUN_DIR`, with its rank and attempt in the environment.

The same file holds what else runs on a node: `agent.pyz attach ...` and `agent.pyz idle ...`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys

from muster.agent.job import Identity, Job
from muster.agent.lead import Lead
from muster.agent.limits import raise_limits
from muster.agent.node import NodeAgent
from muster.process import become_subreaper, signal_name, sweep
from muster.rendezvous.plan import FIRST_LEAD

OTHER_ENTRIES = ("attach", "idle")
PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG)


def main(argv: list[str]) -> int:
    """Run this node's agent to its end; whatever happens, nothing it started outlives it."""
    if argv[0] in OTHER_ENTRIES:
        code: int = importlib.import_module(f"muster.agent.{argv[0]}").main(argv[1:])
        return code
    identity = Identity.from_environment(argv[0], os.environ)
    become_subreaper()
    raise_limits()
    try:
        return asyncio.run(_run(identity))
    finally:
        sweep()


async def _run(identity: Identity) -> int:
    with open(identity.run.token, "rb") as file:
        token = file.read().strip()
    node, lead = NodeAgent(identity, token), None
    if identity.rank == FIRST_LEAD:
        lead = Lead(identity, Job.load(identity.run), token)
        await lead.start()
    _handle_signals(node, lead)
    working = asyncio.create_task(node.run())
    if lead is None:
        return await working
    lead.watch(working)
    code = await lead.run()
    await asyncio.wait([working])
    return code


def _handle_signals(node: NodeAgent, lead: Lead | None) -> None:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        if lead is not None:
            loop.add_signal_handler(signum, lead.stop, f"the job received {signal_name(signum)}", signum)
        else:
            loop.add_signal_handler(signum, node.report_signal, signum)
    for signum in PASSED_ON:  # a checkpoint signal of Slurm's comes to every task
        loop.add_signal_handler(signum, *([lead.pass_on, signum] if lead is not None else [_nothing]))


def _nothing() -> None:
    """The lead passes it on."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
