"""Render the shell code with which the job script requeues its job (templates/requeue.sh). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from muster.errors import Mistake
from muster.launch.templates import render_template
from muster.spec import JobSpec

if TYPE_CHECKING:
    from muster.launch.target import Target

# The number of an attempt is never reused, whether a requeue, a later job of the chain or Slurm itself started it.
NEXT_ATTEMPT = (
    '$(n=0; until mkdir "$run/attempt-$n" 2>/dev/null || [ ! -d "$run/attempt-$n" ]; do n=$((n + 1)); done; echo $n)'
)


@dataclass(frozen=True)
class RequeueCode:
    """Shell code for three places of the job script; all empty for a job that starts once."""

    skip_ended_run: str = ""
    functions: str = ""
    after_the_end: str = ""


NO_REQUEUE = RequeueCode()


def may_be_requeued(spec: JobSpec) -> bool:
    """Return whether the job may be requeued: with --requeue-on by Muster, with `--sbatch requeue` by Slurm."""
    return bool(spec.requeue_on) or "requeue" in spec.sbatch


def requeue_code(spec: JobSpec) -> RequeueCode:
    """Return the shell code for the job's --requeue-on, --max-requeues and --chain."""
    if not may_be_requeued(spec) and spec.chain == 1:
        return NO_REQUEUE
    functions = render_template(
        "requeue.sh",
        CAUSES="|".join(map(quote, spec.requeue_on)) or "''",
        MAX_REQUEUES=str(spec.max_requeues),
        CHAIN=str(spec.chain),
        AVOID="true" if spec.avoid_bad_nodes and not spec.groups else "false",
    )
    return RequeueCode(render_template("skip_ended_run.sh"), functions, "after_the_end")


def check_requeue_options(spec: JobSpec, target: Target) -> None:
    """Raise Mistake for options that could never take effect."""
    if spec.chain > 1 and target.kind != "sbatch":
        where = "inside an allocation" if target.kind == "allocation" else "on one machine"
        raise Mistake(f"--chain {spec.chain}: {where} no job is submitted; chains need sbatch")
    if spec.requeue_on and "no-requeue" in spec.sbatch:
        raise Mistake("--requeue-on and --sbatch no-requeue exclude each other")
