"""The end of a run that nobody leads any more, and of a Slurm job whose batch host is gone.

An allocation that holds nothing must not be left. Slurm ends a job when its batch script does; where the script's host
is gone, somebody has to say `scancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import Any

from muster.agent.job import Identity
from muster.agent.leader.leader_address import LOOPBACK
from muster.agent.node_log import log_to_stderr
from muster.election.leader_silence import LeaderSilence, LeaderVerdict, RunDirectoryView
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.rundir import AttemptPaths, create_exclusive, read_record, write_json
from muster.rundir.hosts import host_names
from muster.slurm.jobs import SlurmError, SlurmJobs, cancel_jobs, list_jobs

logger = logging.getLogger(__name__)

LOOK_S = 0.5
WATCH_S = 600.0  # a run directory that has not answered for so long: nothing could be recorded there either
REACH_S = 3.0
SCRIPT_ENDS_S = 20.0  # a job script that works ends the step within 10 s of the outcome
SLURM_S = 60.0  # for one command of Slurm's
TURN_S, TURN_LOOK_S = 2 * SLURM_S, 2.0  # how long a node waits whether the one that speaks to Slurm succeeds
TURNS_WITHOUT_FILES = 8  # so many nodes may ask Slurm where no file can tell that another one does


def has_outcome(attempt: AttemptPaths) -> bool:
    """By listing: a network filesystem may remember for half a minute that a file was not there."""
    try:
        return os.path.basename(attempt.outcome) in os.listdir(attempt.root)
    except OSError:
        return False


async def end_alone(identity: Identity, reason: str) -> None:
    """Record the end, unless another node does or still leads: then the run goes on without this node."""
    attempt, silence, until = identity.attempt, LeaderSilence(LOOK_S), time.monotonic() + WATCH_S
    while (verdict := await _watch(attempt, silence, until)) is LeaderVerdict.LEADERLESS:
        await note_left_job(identity)
        again = await _look(attempt, silence)  # asking the batch host may have taken seconds
        if again is LeaderVerdict.LEADERLESS:
            if await asyncio.get_running_loop().run_in_executor(None, _record, attempt, reason):
                await end_left_job(identity)
            return
        if again is not LeaderVerdict.OVER:
            with contextlib.suppress(OSError):
                os.unlink(attempt.job_left)
    if verdict is LeaderVerdict.LED:
        logger.warning("the run continues without this node")
    elif verdict is LeaderVerdict.UNKNOWN:
        logger.error("%s could not be read for %g s: it is unknown whether the run continues", attempt.root, WATCH_S)


async def _watch(attempt: AttemptPaths, silence: LeaderSilence, until: float) -> LeaderVerdict:
    """Look until the looks tell something, or there has been time enough."""
    while (verdict := await _look(attempt, silence)) is LeaderVerdict.UNKNOWN and time.monotonic() < until:
        await asyncio.sleep(LOOK_S)
    return verdict


async def _look(attempt: AttemptPaths, silence: LeaderSilence) -> LeaderVerdict:
    """On a thread: the filesystem may not answer for long, and that time must not be taken for the leader's silence."""
    began = time.monotonic()
    sight = await asyncio.get_running_loop().run_in_executor(None, see, attempt)
    return silence.look(sight, time.monotonic() - began)


def see(attempt: AttemptPaths) -> RunDirectoryView | None:
    """One look at the run directory; None where it could not be read."""
    try:
        over = os.path.basename(attempt.outcome) in os.listdir(attempt.root)
    except OSError:
        return None
    terms, claims = attempt.terms(), frozenset(attempt.claims())
    if not terms:
        return RunDirectoryView(over, -1, None, claims)
    stamp = read_record(attempt.status(terms[-1])).get("updated")
    return RunDirectoryView(over, terms[-1], stamp, claims) if over or stamp is not None else None


def _record(attempt: AttemptPaths, reason: str) -> bool:
    """Record the end of a run without a leader; False where another node has.

    True also where it cannot be written: a full filesystem must not keep the nodes.
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


async def note_left_job(identity: Identity) -> None:
    """Before the outcome: tell readers if the batch host does not answer, whose job script would end the Slurm job."""
    job = _own_job(identity)
    loop = asyncio.get_running_loop()
    if job and not await loop.run_in_executor(None, batch_host_answers, identity.attempt):
        logger.warning("the batch host does not answer: Slurm job %s must be cancelled", job["job_id"])
        try:
            write_json(identity.attempt.job_left, job)
        except OSError as error:
            logger.warning("%s could not be written: %s", identity.attempt.job_left, error)


async def end_left_job(identity: Identity) -> None:
    """After the outcome: cancel the Slurm job unless its job script ends it.

    The script's word that it has seen the outcome counts if its host can be reached from here: it may be cut off from
    Slurm as it is from us. A script that works ends this process before the time is over.
    """
    job, attempt, loop = _own_job(identity), identity.attempt, asyncio.get_running_loop()
    if not job:
        return
    deadline = time.monotonic() + SCRIPT_ENDS_S
    while not os.path.exists(attempt.job_left) and time.monotonic() < deadline:
        if _script_saw_the_end(attempt) and await loop.run_in_executor(None, batch_host_answers, attempt):
            return
        await asyncio.sleep(LOOK_S)
    await _cancel_in_turn(identity, job)


def batch_host_answers(attempt: AttemptPaths) -> bool:
    """Whether anything answers there: the refusal of a connection is an answer too."""
    leader = read_record(attempt.leader())
    published = [address for address in leader.get("addresses", []) if address != LOOPBACK]
    for address in published if leader.get("rank") == FIRST_LEADER else host_names(attempt)[:1]:
        try:
            socket.create_connection((address, leader.get("port", 9)), timeout=REACH_S).close()
            return True
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False


def _own_job(identity: Identity) -> dict[str, Any]:
    """The Slurm job, if it is the run's own, and if this node is not the one whose job script ends it."""
    if identity.local or identity.rank == FIRST_LEADER:
        return {}
    return read_record(identity.attempt.slurm_job)


def _script_saw_the_end(attempt: AttemptPaths) -> bool:
    return bool(_job_end(attempt))


def _job_end(attempt: AttemptPaths) -> list[str]:
    """What is recorded of the job's end."""
    try:
        os.listdir(attempt.root)  # a network filesystem may remember for half a minute that a file was not there
        with open(attempt.job_end, encoding="ascii", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []


async def _cancel_in_turn(identity: Identity, job: dict[str, Any]) -> None:
    """Thousands of nodes may come here at once: one of them speaks to Slurm; if it cannot, another does."""
    attempt, deadline, loop = identity.attempt, time.monotonic() + TURN_S, asyncio.get_running_loop()
    record = {"rank": identity.rank, "host": identity.host}
    while time.monotonic() < deadline and "gone" not in _job_end(attempt):
        try:
            mine = await loop.run_in_executor(None, create_exclusive, attempt.job_claim, record)
        except OSError:  # the filesystem is full, or gone
            mine = identity.rank <= TURNS_WITHOUT_FILES
            if not mine:
                return
        if mine:
            await loop.run_in_executor(None, _cancel_or_pass_on, identity, job)
            return
        await asyncio.sleep(TURN_LOOK_S)


def _cancel_or_pass_on(identity: Identity, job: dict[str, Any]) -> None:
    try:
        _cancel_if_held(identity, job)
    except SlurmError as error:
        logger.error("Slurm job %s could not be cancelled: %s", job.get("job_id"), error)
        with contextlib.suppress(OSError):
            os.unlink(identity.attempt.job_claim)


def _cancel_if_held(identity: Identity, job: dict[str, Any]) -> None:
    """Not a later start of the job: this node may have been cut off while the job was put back into the queue."""
    own = SlurmJobs((str(job.get("job_id")),))
    for seen in list_jobs(own, timeout=SLURM_S):
        this_start = seen.submitted_id in own.ids and seen.restarts == job.get("restarts")
        if this_start and seen.holds_nodes and seen.uid == os.geteuid():
            logger.warning("cancelling Slurm job %s: the run is over and its job script does not end it", own)
            cancel_jobs(own, timeout=SLURM_S)
            break
    with contextlib.suppress(OSError), open(identity.attempt.job_end, "a", encoding="ascii") as file:
        file.write("gone\n")


def main(argv: list[str]) -> int:
    """What an agent becomes that has crashed (`agent.pyz orphan RUN_DIR REASON`): the last one must end the run."""
    identity = Identity.from_environment(argv[0], os.environ)
    log_to_stderr(identity.host)
    asyncio.run(_leave(identity, argv[1]))
    return INFRASTRUCTURE_FAILED


async def _leave(identity: Identity, reason: str) -> None:
    await end_alone(identity, reason)
    if has_outcome(identity.attempt):
        await end_left_job(identity)
