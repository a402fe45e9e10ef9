"""Render the job script, a pure function of the run. One script serves sbatch, an allocation and a local run.

The shell code is in `templates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from muster import exit_codes
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_HEARTBEAT_S
from muster.launch.requeue import NO_REQUEUE, RequeueCode
from muster.launch.templates import render_template
from muster.rundir.launcher_log import CANCELLED_PATTERN, NO_CAUSE_PATTERN
from muster.spec.validators import FORWARDED_SIGNALS

_TASK_0_ENDED = (
    """grep -qs '"rank": 0[,}]' "$attempt/lead-0.json" &&"""
    ' grep -aEq "error: [^ ]*: tasks? 0[-,:].*$1" "$attempt/steps.log"'
)

_ANY_TASK_ENDED = "grep -aEq 'error: [^ ]*: tasks? [0-9]' \"$attempt/steps.log\""

STEP_END_TIMEOUT_S = 10  # tasks may hold the step for this long after the outcome is known


@dataclass(frozen=True)
class Launcher:
    """The command that starts one prelude per node, and the variables from which a task reads its number and host."""

    backend: str
    words: Sequence[str]  # shell words, already quoted
    rank_variable: str
    host_variable: str
    prepare: str = ""  # shell lines before the start
    attempt: str = "0"
    cleanup: str = ""  # shell lines after the end
    shell: Sequence[str] = ("bash", "-c")  # runs the prelude; shell words, already quoted
    leader_ended: str = _TASK_0_ENDED  # a shell condition on the launcher's stderr; "$1" in it: how the leader ended


@dataclass(frozen=True)
class PreludeArguments:
    """The interpreter of the nodes and the user's shell code that runs before it."""

    python: str
    setup: str = ""
    health_check: str = ""


def render(
    run_dir: str,
    run_id: str,
    prelude: PreludeArguments,
    launcher: Launcher,
    directives: Sequence[str],
    requeue: RequeueCode = NO_REQUEUE,
    task: str = "",
    surplus: bool = False,
    succession: bool = False,
) -> str:
    """Return the whole job script. External values are quoted here and nowhere else.

    `task` is the variable with the task number of an array; the run directory of each task has it as a suffix. With
    a surplus of nodes the leader decides whether the run survives an early end of a task; with succession it also
    decides that for the end of the leader's task.
    """
    body = render_template(
        "job.sh",
        RUN=quote(run_dir) + (f'-"${task}"' if task else ""),
        RUN_ID=run_id + (f"-${task}" if task else ""),
        ATTEMPT=launcher.attempt,
        BACKEND=launcher.backend,
        SKIP_ENDED_RUN=requeue.skip_ended_run,
        REQUEUE=requeue.functions,
        AFTER_THE_END=requeue.after_the_end,
        PREPARE=launcher.prepare,
        NO_CAUSE=quote(NO_CAUSE_PATTERN),
        CANCELLED=quote(CANCELLED_PATTERN),
        LEADER_ENDED=launcher.leader_ended,
        LEADER_GONE=_leader_gone(surplus, succession),
        TASK_ENDED="false" if surplus else _ANY_TASK_ENDED,
        ANY_TASK_FAILED=_ANY_TASK_ENDED,
        LAUNCHER=" ".join(launcher.words),
        SHELL=" ".join(launcher.shell),
        CLEANUP=launcher.cleanup,
        PYTHON=quote(prelude.python),
        SETUP=quote(prelude.setup),
        CHECK=quote(prelude.health_check),
        STEP_END_TIMEOUT_S=str(STEP_END_TIMEOUT_S),
        PRELUDE=quote(f"\n{_prelude(launcher)}\n"),
    )
    about = f"# Written by Muster for run {run_id}. What it does is explained in docs/architecture.md."
    return "\n".join(["#!/bin/bash", *directives, about, "", body, ""])


def _leader_gone(surplus: bool, succession: bool) -> str:
    """Return the condition under which the run has ended with the leader's task.

    Another node may have taken over before the driver ran, in a run of any policy.
    """
    if succession:
        return "false"
    return "! has lead-1.json && leader_ended ''" if surplus else "leader_ended ''"


def _prelude(launcher: Launcher) -> str:
    return render_template(
        "prelude.sh",
        RANK_VARIABLE=launcher.rank_variable,
        HOST_VARIABLE=launcher.host_variable,
        UNSEEN=str(exit_codes.RUN_DIR_NOT_VISIBLE),
        SETUP_FAILED=str(exit_codes.SETUP_FAILED),
        UNHEALTHY=str(exit_codes.HEALTH_CHECK_FAILED),
        NO_PYTHON=str(exit_codes.NO_PYTHON),
        FORWARDED_SIGNALS=" ".join(FORWARDED_SIGNALS),
        HEARTBEAT=heartbeat(launcher.rank_variable),
    )


def heartbeat(rank_variable: str) -> str:
    """Return shell code that starts this node's heartbeat if the node may lead; it reads `muster_attempt`."""
    return render_template(
        "heartbeat.sh",
        RANK_VARIABLE=rank_variable,
        CANDIDATES=str(FIRST_LEADER_CANDIDATES),
        HEARTBEAT_S=f"{STARTUP_HEARTBEAT_S:g}",
        FORWARDED_SIGNALS=" ".join(FORWARDED_SIGNALS),
    )
