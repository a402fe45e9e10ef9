"""The cancellation of a Slurm job whose job script does not end it, so that no idle allocation is left.

Slurm ends a job when its batch script exits. If the script's host is lost, one of the other nodes calls scancel.
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
from muster.agent.net.addresses import LOOPBACK
from muster.lifecycle.config import FIRST_LEADER
from muster.rundir import (
    AttemptPaths,
    create_exclusive,
    private_opener,
    read_record,
    release_exclusive,
    write_json,
)
from muster.rundir.hosts import host_names
from muster.rundir.records import job_end_marks
from muster.slurm.jobs import SlurmError, SlurmJobs, cancel_jobs, list_jobs

logger = logging.getLogger(__name__)

JOB_END_POLL_S = 0.5
CONNECT_TIMEOUT_S = 3.0
SCRIPT_TIMEOUT_S = 20.0  # a working job script ends the step within 10 s of the outcome
SLURM_TIMEOUT_S = 60.0  # for one Slurm command
CLAIM_TIMEOUT_S = 2 * SLURM_TIMEOUT_S  # how long a node waits for the node that claimed the cancellation
CLAIM_POLL_S = 2.0
NODES_WITHOUT_CLAIM = 8  # at most this many nodes call Slurm if no claim can be written


async def mark_abandoned_job(identity: Identity) -> None:
    """Before the outcome is recorded: publish that the batch host, whose script would end the job, does not answer."""
    job = await asyncio.to_thread(_own_job, identity)
    if job and not await asyncio.to_thread(batch_host_answers, identity.attempt):
        logger.warning("the batch host does not answer: Slurm job %s must be cancelled", job["job_id"])
        try:
            await asyncio.to_thread(write_json, identity.attempt.job_left, job)
        except OSError as error:
            logger.warning("%s could not be written: %s", identity.attempt.job_left, error)


async def cancel_abandoned_job(identity: Identity) -> None:
    """After the outcome is recorded: cancel the Slurm job unless its job script ends it.

    The script's note that it has seen the outcome counts only if its host answers: the host may be cut off from Slurm
    as well. A working script ends this process before the timeout.
    """
    job, attempt = await asyncio.to_thread(_own_job, identity), identity.attempt
    if not job:
        return
    deadline = time.monotonic() + SCRIPT_TIMEOUT_S
    while not await asyncio.to_thread(os.path.exists, attempt.job_left) and time.monotonic() < deadline:
        if await asyncio.to_thread(_job_end_is_seen, attempt):
            return
        await asyncio.sleep(JOB_END_POLL_S)
    await _claim_and_cancel(identity, job)


def batch_host_answers(attempt: AttemptPaths) -> bool:
    """Return whether the batch host's kernel answers; a refused connection is an answer, too."""
    leader = read_record(attempt.leader())
    published = [address for address in leader.get("addresses", []) if address != LOOPBACK]
    for address in published if leader.get("rank") == FIRST_LEADER else host_names(attempt)[:1]:
        try:
            socket.create_connection((address, leader.get("port", 9)), timeout=CONNECT_TIMEOUT_S).close()
            return True
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False


def _job_end_is_seen(attempt: AttemptPaths) -> bool:
    return bool(job_end_marks(attempt)) and batch_host_answers(attempt)


def _own_job(identity: Identity) -> dict[str, Any]:
    """Return the record of the Slurm job; {} if Muster did not submit it, or if its job script runs on this node."""
    if identity.local or identity.node_index == FIRST_LEADER:
        return {}
    return read_record(identity.attempt.slurm_job)


async def _claim_and_cancel(identity: Identity, job: dict[str, Any]) -> None:
    """Call Slurm from one node only, of thousands that may come here at once; the next one tries if that node fails."""
    attempt, deadline = identity.attempt, time.monotonic() + CLAIM_TIMEOUT_S
    record = {"rank": identity.node_index, "host": identity.host}
    while time.monotonic() < deadline and "gone" not in await asyncio.to_thread(job_end_marks, attempt):
        try:
            claimed = await asyncio.to_thread(create_exclusive, attempt.job_claim, record)
        except OSError:  # the filesystem is full or unreachable
            claimed = identity.node_index <= NODES_WITHOUT_CLAIM
            if not claimed:
                return
        if claimed:
            await asyncio.to_thread(_cancel_or_release_claim, identity, job)
            return
        await asyncio.sleep(CLAIM_POLL_S)


def _cancel_or_release_claim(identity: Identity, job: dict[str, Any]) -> None:
    try:
        _cancel_if_held(identity, job)
    except SlurmError as error:
        logger.error("Slurm job %s could not be cancelled: %s", job.get("job_id"), error)
        with contextlib.suppress(OSError):
            release_exclusive(identity.attempt.job_claim)


def _cancel_if_held(identity: Identity, job: dict[str, Any]) -> None:
    """Cancel this start of the job only: it may have been requeued while this node was cut off."""
    own = SlurmJobs((str(job.get("job_id")),))
    for found in list_jobs(own, timeout=SLURM_TIMEOUT_S):
        this_start = found.submitted_id in own.ids and found.restarts == job.get("restarts")
        if this_start and found.holds_nodes and found.uid == os.geteuid():
            logger.warning("cancelling Slurm job %s: the run is over and its job script does not end it", own)
            cancel_jobs(own, timeout=SLURM_TIMEOUT_S)
            break
    end = identity.attempt.job_end
    with contextlib.suppress(OSError), open(end, "a", encoding="ascii", opener=private_opener) as file:
        file.write("gone\n")
