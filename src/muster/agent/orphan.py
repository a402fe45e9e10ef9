"""The end of a run that nobody leads any more, and of a Slurm job whose batch host is gone.

An allocation that holds nothing must not be left. Slurm ends a job when its batch script does; where the script's host
is gone, somebody has to say `scancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import time

from muster.agent.job import Identity, host_names, slurm_job_id
from muster.agent.log import say
from muster.agent.whereabouts import LOOPBACK
from muster.board import AttemptPaths, claim, read_record, write_json
from muster.rendezvous.plan import INFRASTRUCTURE_FAILED

LOOK_S = 0.5
QUIET_S = 25.0  # a lead that lives publishes every 10 s
REACH_S = 3.0
SCANCEL_S = 60.0


def has_outcome(attempt: AttemptPaths) -> bool:
    """By listing: a network filesystem may remember for half a minute that a file was not there."""
    try:
        return os.path.basename(attempt.outcome) in os.listdir(attempt.root)
    except OSError:
        return False


async def end_alone(identity: Identity, reason: str) -> None:
    """Record the end, unless somebody does or still leads: then the run goes on without this node."""
    attempt, seen, since = identity.attempt, None, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        if has_outcome(attempt):
            return
        published = [(term, read_record(attempt.status(term)).get("updated")) for term in attempt.terms()[-1:]]
        if seen is not None and published != seen:
            say("the run goes on without this node")
            return
        seen = published
        await asyncio.sleep(LOOK_S)
    record = {"exit_code": INFRASTRUCTURE_FAILED, "state": "failed", "end_reason": reason, "lost": True}
    await note_left_job(identity)
    loop = asyncio.get_running_loop()
    if await loop.run_in_executor(None, claim, attempt.outcome, record):
        say(f"nobody leads the run: its end is recorded: {reason}")
        await end_left_job(identity)


async def note_left_job(identity: Identity) -> None:
    """Before the outcome: if the batch script's host is gone, nothing ends the Slurm job, and readers are to know."""
    job = slurm_job_id(os.environ)
    if identity.local or identity.rank == 0 or job is None or os.environ.get("ENVIRONMENT") != "BATCH":
        return
    loop = asyncio.get_running_loop()
    if not await loop.run_in_executor(None, batch_host_answers, identity.attempt):
        say(f"the batch host is gone: job {job} has to be cancelled")
        try:
            write_json(identity.attempt.job_left, {"job_id": job})
        except OSError as error:
            say(f"{identity.attempt.job_left} could not be written: {error}")


async def end_left_job(identity: Identity) -> None:
    """After the outcome: end the Slurm job, if that is left to us. Where there is no scancel, readers do it."""
    job, program = read_record(identity.attempt.job_left).get("job_id"), shutil.which("scancel")
    loop = asyncio.get_running_loop()
    if job and program and await loop.run_in_executor(None, _scancel, program, job):
        with contextlib.suppress(OSError):
            os.unlink(identity.attempt.job_left)


def batch_host_answers(attempt: AttemptPaths) -> bool:
    """Whether anything answers there: the refusal of a connection is an answer too."""
    lead = read_record(attempt.lead())
    published = [address for address in lead.get("addresses", []) if address != LOOPBACK]
    for address in published if lead.get("rank") == 0 else host_names(attempt)[:1]:
        try:
            socket.create_connection((address, lead.get("port", 9)), timeout=REACH_S).close()
            return True
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False


def _scancel(program: str, job: str) -> bool:
    try:
        done = subprocess.run([program, job], capture_output=True, text=True, timeout=SCANCEL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"scancel {job}: {error}")
        return False
    if done.returncode:
        say(f"scancel {job}: {done.stderr.strip()}")
    return done.returncode == 0
