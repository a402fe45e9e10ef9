"""The environment of the job's processes: Ray's daemons (and through them its workers) and the driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping

from muster.agent.job import Identity
from muster.rundir.paths import LIBRARY

# Variables that describe the step the agent runs in. A process that starts steps of its own must not inherit them.
_STEP_SCOPED = re.compile(
    r"SLURM_(STEP.*|PROCID|LOCALID|NODEID|GTIDS|TASK_PID|SRUN_.*|LAUNCH_.*|CPU_BIND.*|MEM_BIND.*|DISTRIBUTION"
    r"|UMASK|TASKS_PER_NODE|NTASKS|NPROCS|CPUS_PER_TASK|OVERLAP|INPUTMODE|EXPORT_ENV)|PMI_.*|PMI2_.*|PMIX_.*"
)
_AGENTS_OWN = (
    "MUSTER_RANK",
    "MUSTER_HOST",
    "MUSTER_TASK",
    "MUSTER_NODE",
    "MUSTER_BACKEND",
    "MUSTER_JOB_START",
    "RAY_ADDRESS",
)


SYSTEM_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin")


def given_variables(identity: Identity) -> dict[str, str]:
    """What the user gave with --env; in a file of mode 0600, since it may be secret."""
    with open(identity.run.env, encoding="utf-8") as file:
        values: dict[str, str] = json.load(file)
    return values


def job_environment(
    base: Mapping[str, str], given: Mapping[str, str], identity: Identity, cycle: int
) -> dict[str, str]:
    """The job's variables without those of the step, the user's own, and what tells a process where it is."""
    kept = (name for name in base if not (name in _AGENTS_OWN or _STEP_SCOPED.fullmatch(name)))
    env = {name: base[name] for name in kept}
    env["PATH"] = path_with_interpreter(env.get("PATH", os.defpath))
    env.setdefault("PYTHONUNBUFFERED", "1")  # so that output is seen when it is written
    env.setdefault("PYTHONFAULTHANDLER", "1")  # so that a crash, or the abort of a stalled driver, shows where it was
    env.update(given)
    env["PYTHONPATH"] = path_with_library(env.get("PYTHONPATH", ""), identity.run.library)
    env.update(
        MUSTER_RUN_ID=identity.run.run_id,
        MUSTER_ATTEMPT=str(identity.attempt.number),
        MUSTER_CYCLE=str(cycle),
        MUSTER_RESUME="1" if identity.attempt.number or cycle else "0",
        MUSTER_OUTPUT_DIR=identity.run.output_dir,
        MUSTER_BEAT_FILE=identity.attempt.beat,
    )
    return env


def path_with_library(path: str, library: str) -> str:
    """PYTHONPATH with the run's library behind what the user has there, and without that of a run around this one."""
    kept = [entry for entry in path.split(os.pathsep) if os.path.basename(entry) != LIBRARY] if path else []
    return os.pathsep.join(kept if os.pathsep in library else [*kept, library])  # there is no way to write a colon


def path_with_interpreter(path: str) -> str:
    """PATH on which `python` is the interpreter chosen for the job, as activating its environment would make it.

    A system directory is never moved to the front: that would hide what modules put before it.
    """
    directory = os.path.dirname(sys.executable)
    if directory in SYSTEM_DIRECTORIES or shutil.which("python", path=path) == sys.executable:
        return path
    return directory + os.pathsep + path
