"""The end of a term: the leader publishes the outcome of the run, or hands the run over to another node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from muster.agent.abandoned_job import mark_abandoned_job
from muster.agent.control.messages import Dismissal, MembershipUpdate, Retirement
from muster.agent.leader.bad_nodes import record_bad_nodes
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.services import LeaderServices
from muster.election.membership import Membership
from muster.lifecycle.events import RunOutcome
from muster.rundir import AttemptPaths, launcher_log


async def publish_outcome(
    context: LeaderContext,
    services: LeaderServices,
    outcome: RunOutcome,
    signalled: bool,
    regular: Sequence[asyncio.Future[Any]],
) -> int | None:
    """Publish the outcome, release all agents and return the exit code; None if the lease has ended meanwhile.

    The lease has authorized the outcome. `signalled`: Slurm ends the job soon. `regular`: the tasks that publish
    the status; they are cancelled.
    """
    await record_bad_nodes(context, services.snapshot, hurry=signalled)
    if not await context.lease.wait_until_it_acts():
        return None
    await mark_abandoned_job(context.identity)
    await services.publish()
    for task in regular:  # what is being written comes first; nothing is written after the outcome
        task.cancel()
    publisher = context.publisher
    publisher.run_ends(outcome)
    await context.files.run(publisher.conclude, publisher.batch(services.snapshot), outcome, signalled)
    await context.connections.release(Dismissal(outcome.exit_code, outcome.end_reason))
    return outcome.exit_code


def explained(outcome: RunOutcome, attempt: AttemptPaths) -> RunOutcome:
    """Return the outcome of a signalled run with Slurm's cause of the signal, e.g. its time limit, if that is known."""
    cause = launcher_log.cancellation(attempt.steps_log)
    return replace(outcome, end_reason=f"{outcome.end_reason}: {cause}") if cause else outcome


async def hand_over(context: LeaderContext, reason: str, last: Membership) -> None:
    """Hand over to another node: the last membership excludes this one. No driver runs that would need a fence."""
    context.publisher.phase(f"{context.identity.host} hands over to another node: {reason}")
    context.connections.send_all(MembershipUpdate(last))
    await context.connections.release(Retirement(reason))
