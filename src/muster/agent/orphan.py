"""The end of a run that nobody leads any more, and of a Slurm job whose batch host is gone.

An allocation that holds nothing must not be left. Slurm ends a job when its batch script does; where the script's host
is gone, somebody has to say `scancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import Any

from muster.agent.job import Identity, host_names
from muster.agent.log import say
from muster.agent.slurm_job import Jobs, SlurmError, cancel, look
from muster.agent.whereabouts import LOOPBACK
from muster.board import AttemptPaths, claim, read_record, write_json
from muster.rendezvous.plan import FIRST_LEAD, INFRASTRUCTURE_FAILED

LOOK_S = 0.5
QUIET_S = 25.0  # a lead that lives publishes every 10 s
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
    """Before the outcome: tell readers if the batch host does not answer, whose job script would end the Slurm job."""
    job = _own_job(identity)
    loop = asyncio.get_running_loop()
    if job and not await loop.run_in_executor(None, batch_host_answers, identity.attempt):
        say(f"the batch host is gone: job {job['job_id']} has to be cancelled")
        try:
            write_json(identity.attempt.job_left, job)
        except OSError as error:
            say(f"{identity.attempt.job_left} could not be written: {error}")


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
    lead = read_record(attempt.lead())
    published = [address for address in lead.get("addresses", []) if address != LOOPBACK]
    for address in published if lead.get("rank") == FIRST_LEAD else host_names(attempt)[:1]:
        try:
            socket.create_connection((address, lead.get("port", 9)), timeout=REACH_S).close()
            return True
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False


def _own_job(identity: Identity) -> dict[str, Any]:
    """The Slurm job, if it is the run's own, and if this node is not the one whose job script ends it."""
    if identity.local or identity.rank == FIRST_LEAD:
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
            mine = await loop.run_in_executor(None, claim, attempt.job_claim, record)
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
        say(f"job {job.get('job_id')} could not be cancelled: {error}")
        with contextlib.suppress(OSError):
            os.unlink(identity.attempt.job_claim)


def _cancel_if_held(identity: Identity, job: dict[str, Any]) -> None:
    """Not a later start of the job: this node may have been cut off while the job was put back into the queue."""
    own = Jobs((str(job.get("job_id")),))
    for seen in look(own, timeout=SLURM_S):
        this_start = seen.submitted_id in own.ids and seen.restarts == job.get("restarts")
        if this_start and seen.holds_nodes and seen.uid == os.geteuid():
            say(f"cancels Slurm job {own}: the run is over, and its job script does not end it")
            cancel(own, timeout=SLURM_S)
            break
    with contextlib.suppress(OSError), open(identity.attempt.job_end, "a", encoding="ascii") as file:
        file.write("gone\n")


def main(argv: list[str]) -> int:
    """What an agent becomes that has crashed (`agent.pyz orphan RUN_DIR REASON`): the last one must end the run."""
    identity = Identity.from_environment(argv[0], os.environ)
    asyncio.run(_leave(identity, argv[1]))
    return INFRASTRUCTURE_FAILED


async def _leave(identity: Identity, reason: str) -> None:
    recorded = True
    try:
        await end_alone(identity, reason)
    except OSError as error:  # a full filesystem must not keep the nodes
        say(f"the end of the run could not be recorded: {error}")
        recorded = False
    if has_outcome(identity.attempt) or not recorded:
        await end_left_job(identity)
