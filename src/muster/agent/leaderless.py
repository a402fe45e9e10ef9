"""The end of a run that has lost its leader: the last nodes record its outcome, unless another node leads it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time

from muster.agent.abandoned_job import cancel_abandoned_job, mark_abandoned_job
from muster.agent.job import Identity
from muster.agent.node_log import AGENT_LIBRARIES, log_to_stderr
from muster.election.leader_silence import LeaderSilence, LeaderVerdict, RunDirectoryView
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.rundir import AttemptPaths, create_exclusive, is_listed, read_record, write_json
from muster.rundir.listing import read_listing

logger = logging.getLogger(__name__)

LEADER_POLL_S = 0.5
RUN_DIRECTORY_TIMEOUT_S = 600.0  # after this time without an answer the outcome could not be written either


def has_outcome(attempt: AttemptPaths) -> bool:
    return is_listed(attempt.outcome)


async def end_leaderless_run(identity: Identity, reason: str) -> None:
    """Record the run as failed, unless another node has recorded its end or leads it."""
    attempt, silence, until = identity.attempt, LeaderSilence(LEADER_POLL_S), time.monotonic() + RUN_DIRECTORY_TIMEOUT_S
    while (verdict := await _wait_for_verdict(attempt, silence, until)) is LeaderVerdict.LEADERLESS:
        await mark_abandoned_job(identity)
        again = await _poll(attempt, silence)  # connecting to the batch host may have taken seconds
        if again is LeaderVerdict.LEADERLESS:
            if await asyncio.to_thread(_record_failure, attempt, reason):
                await cancel_abandoned_job(identity)
            return
        if again is not LeaderVerdict.OVER:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(os.unlink, attempt.job_left)
    if verdict is LeaderVerdict.LED:
        logger.warning("the run continues without this node")
    elif verdict is LeaderVerdict.UNKNOWN:
        logger.error("%s cannot be read: it is unknown whether the run continues", attempt.root)


async def _wait_for_verdict(attempt: AttemptPaths, silence: LeaderSilence, until: float) -> LeaderVerdict:
    while (verdict := await _poll(attempt, silence)) is LeaderVerdict.UNKNOWN and time.monotonic() < until:
        await asyncio.sleep(LEADER_POLL_S)
    return verdict


async def _poll(attempt: AttemptPaths, silence: LeaderSilence) -> LeaderVerdict:
    """Read the run directory on a thread: the time that a slow filesystem takes is not silence of the leader."""
    began = time.monotonic()
    view = await asyncio.to_thread(read_view, attempt)
    return silence.observe(view, time.monotonic() - began)


def read_view(attempt: AttemptPaths) -> RunDirectoryView | None:
    """Return what the run directory shows about a leader; None if it could not be read."""
    listing = read_listing(attempt)
    if listing is None:
        return None
    over, terms, claims = listing.has_outcome, listing.terms, frozenset(listing.claims)
    if not terms:
        return RunDirectoryView(over, -1, None, claims)
    stamp = read_record(attempt.status(terms[-1])).get("updated")
    return RunDirectoryView(over, terms[-1], stamp, claims) if over or stamp is not None else None


async def record_failure(attempt: AttemptPaths, reason: str) -> None:
    """Record that this node cannot lead the run, in the simplest way: its filesystem may lack what a claim needs."""
    record = {"exit_code": INFRASTRUCTURE_FAILED, "state": "failed", "end_reason": reason, "lost": False}
    with contextlib.suppress(OSError):
        if not await asyncio.to_thread(has_outcome, attempt):
            await asyncio.to_thread(write_json, attempt.outcome, record)


def _record_failure(attempt: AttemptPaths, reason: str) -> bool:
    """Record the outcome; return False if another node has.

    Returns True also if it cannot be written: a full filesystem must not keep the nodes allocated.
    """
    record = {"exit_code": INFRASTRUCTURE_FAILED, "state": "failed", "end_reason": reason, "lost": True}
    try:
        recorded = create_exclusive(attempt.outcome, record)
    except OSError as error:
        logger.error("%s could not be written: %s", attempt.outcome, error)
        return True
    if recorded:
        logger.error("the run has no leader; recorded as failed: %s", reason)
    return recorded


def main(argv: list[str]) -> int:
    """Run `agent.pyz orphan RUN_DIR REASON`, which a crashed agent becomes: the last node must end the run."""
    identity = Identity.from_environment(argv[0], os.environ)
    log_to_stderr(identity.host, AGENT_LIBRARIES)
    asyncio.run(_end(identity, argv[1]))
    return INFRASTRUCTURE_FAILED


async def _end(identity: Identity, reason: str) -> None:
    await end_leaderless_run(identity, reason)
    if await asyncio.to_thread(has_outcome, identity.attempt):
        await cancel_abandoned_job(identity)
