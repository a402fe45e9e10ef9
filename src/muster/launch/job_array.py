"""Job arrays: each task is a run of its own, with a directory that is written before the array is submitted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from muster.rundir import RunPaths
from muster.spec.arrays import task_ids

if TYPE_CHECKING:
    from muster.launch.run_writer import Prepared

TASK = "SLURM_ARRAY_TASK_ID"


def tasks(prepared: Prepared) -> list[Prepared]:
    """The runs of a prepared job: those of its array, or itself."""
    if prepared.spec.array is None:
        return [prepared]
    runs = (RunPaths(f"{prepared.run.root}-{number}") for number in task_ids(prepared.spec.array))
    return [dataclasses.replace(prepared, run=run) for run in runs]


def job_id(prepared: Prepared, submitted: str) -> str:
    """Slurm's name for this run's part of what was submitted: `17_3` is task 3 of array 17."""
    return submitted if prepared.spec.array is None else f"{submitted}_{prepared.run.run_id.rpartition('-')[2]}"
