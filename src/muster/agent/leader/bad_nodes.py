"""Records at the end of an attempt which nodes have failed in it, and runs the site's command for them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from muster.agent.job import Identity, Job
from muster.agent.leader.context import LeaderContext
from muster.process import Scope, SpawnError
from muster.rundir.node_evidence import Evidence, bad_hosts, by_host
from muster.rundir.node_memory import NodeMemory, record_attempt, run_evidence

logger = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 20.0  # of --on-bad-node, for all nodes: it delays the end of the run


async def record_bad_nodes(context: LeaderContext, services: Callable[[], dict[str, Any]], hurry: bool) -> None:
    """Write the evidence of this attempt and publish it. Errors are only logged: the run ends as it would.

    `services` returns their part of the status. `hurry`: Slurm sends SIGKILL soon, so no command is run.
    """
    publisher = context.publisher
    try:
        await context.files.run(publisher.write, publisher.batch(services))  # the evidence is read from the events
        found, bad = await context.files.run(_record, context.identity, context.job)
    except OSError as error:
        logger.warning("nodes that failed could not be recorded: %s", error)
        return
    for one in found:
        publisher.event("bad_node", host=one.host, kind=one.kind, reason=one.reason, bad=one.host in bad)
    reasons = {host: own[-1].reason for host, own in by_host(found).items() if host in bad}
    if reasons:
        publisher.phase(f"nodes that the next attempt avoids if it can: {', '.join(bad)}")
    if reasons and context.job.on_bad_node is not None and not hurry:
        await _run_commands(context.job.on_bad_node, reasons)


def _record(identity: Identity, job: Job) -> tuple[list[Evidence], list[str]]:
    """Return the evidence of this attempt and the hosts that are bad in this run."""
    found = record_attempt(identity.run, identity.attempt, gang=job.procs_per_node is not None)
    if found and job.node_memory is not None and not identity.local:
        NodeMemory(job.node_memory).remember(found)
    return found, bad_hosts(run_evidence(identity.run), time.time())


async def _run_commands(command: str, reasons: dict[str, str]) -> None:
    """Run the command for every host at once; end what has not ended in time."""
    async with Scope("bad nodes", lost_owner_grace=0.0) as scope:
        try:
            started = [
                await scope.spawn(
                    ["bash", "-c", command],
                    env={**os.environ, "MUSTER_BAD_NODE": host, "MUSTER_BAD_NODE_REASON": reason},
                    stdout=2,
                    stderr=2,
                )
                for host, reason in reasons.items()
            ]
        except SpawnError as error:
            logger.warning("--on-bad-node could not be started: %s", error)
            return
        ends = [asyncio.ensure_future(process.wait()) for process in started]
        done, late = await asyncio.wait(ends, timeout=COMMAND_TIMEOUT_S)
        for end in late:
            end.cancel()
        failed = [str(end.result()) for end in done if end.result().shell_code]
        if late or failed:
            logger.warning("--on-bad-node: %s", "; ".join([*failed, *["it did not end in time"] * bool(late)]))
