"""The variables that srun sets for the tasks of a step; a program that starts a further step must not inherit them.

Standard library only: nodes import this module, too. Job scripts, the doctor's probe and the agents' child processes
all take the names from here.

    further step   srun reads them as options: they would shrink or block a step, or change its output
    task           describe one task: wrong in any other process, and misleading for MPI
"""

from __future__ import annotations

import textwrap

_FURTHER_STEP_PREFIXES = ("SLURM_STEP", "SLURM_CPU_BIND", "SLURM_MEM_BIND")
_FURTHER_STEP_NAMES = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_GTIDS",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_LABELIO",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
)
_TASK_PREFIXES = ("SLURM_SRUN_", "SLURM_LAUNCH_", "PMI_", "PMI2_", "PMIX_")
_TASK_NAMES = ("SLURM_TASK_PID", "SLURM_UMASK", "SLURM_OVERLAP", "SLURM_INPUTMODE", "SLURM_EXPORT_ENV")

_SHELL_WIDTH = 118  # of a line of the job script, without the backslash that continues it


def affects_further_step(name: str) -> bool:
    """Return whether srun would take an option of a further step from this variable.

    >>> affects_further_step("SLURM_STEP_ID"), affects_further_step("SLURM_TASK_PID")
    (True, False)
    """
    return name in _FURTHER_STEP_NAMES or name.startswith(_FURTHER_STEP_PREFIXES)


def belongs_to_step(name: str) -> bool:
    """Return whether the variable describes the step or one of its tasks, rather than the job.

    >>> belongs_to_step("SLURM_TASK_PID"), belongs_to_step("SLURM_JOB_ID")
    (True, False)
    """
    return affects_further_step(name) or name in _TASK_NAMES or name.startswith(_TASK_PREFIXES)


def unset_arguments() -> str:
    """Return the arguments of bash's `unset` for all variables that affect a further step, in several lines."""
    words = [*(f"${{!{prefix}@}}" for prefix in _FURTHER_STEP_PREFIXES), *_FURTHER_STEP_NAMES]
    lines = textwrap.wrap(" ".join(["unset", *words]), _SHELL_WIDTH, subsequent_indent="  ", break_long_words=False)
    return " \\\n".join(lines).partition(" ")[2]
