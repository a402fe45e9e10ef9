"""The environment of the job's processes: the driver, gangs, services, Ray's daemons and, through them, Ray's workers.

The sandbox and placement build environments for other purposes: sandbox/engine/zygote.py for untrusted programs, which
must not see the job's variables, and placement/runtime/actor.py for servers, which have the environment of their actor.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping

from muster.agent.job import Identity
from muster.agent.private_dir import avoid_occupied, remove_private_children
from muster.agent.ray.settings import temp_dir
from muster.rundir.hosts import STEP_NODES_VARIABLE
from muster.rundir.paths import LIBRARY
from muster.slurm.step_variables import belongs_to_step

_AGENT_ONLY = frozenset(
    [
        "MUSTER_RANK",
        "MUSTER_HOST",
        "MUSTER_TASK",
        "MUSTER_NODE",
        "MUSTER_BACKEND",
        "MUSTER_JOB_START",
        STEP_NODES_VARIABLE,
        "RAY_ADDRESS",
    ]
)

SYSTEM_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin")


def given_variables(identity: Identity) -> dict[str, str]:
    """Return the user's --env variables. Their file has mode 0600, since they may be secret."""
    with open(identity.run.env, encoding="utf-8") as file:
        values: dict[str, str] = json.load(file)
    return values


def node_environment(identity: Identity, cycle: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the job's processes on this node; `base` is that of the agent.

    Raise OSError if the user's variables cannot be read.
    """
    return job_environment(base, given_variables(identity), identity, cycle)


def job_environment(
    base: Mapping[str, str], given: Mapping[str, str], identity: Identity, cycle: int
) -> dict[str, str]:
    """Return `base` without the variables of the step, with the user's variables and with Muster's for this cycle."""
    kept = (name for name in base if not (name in _AGENT_ONLY or belongs_to_step(name)))
    env = {name: base[name] for name in kept}
    env["PATH"] = path_with_interpreter(env.get("PATH", os.defpath))
    env.setdefault("PYTHONUNBUFFERED", "1")  # logs show output when it is written
    env.setdefault("PYTHONFAULTHANDLER", "1")  # a crash, or the abort of a stalled driver, prints its stacks
    env.update(given)
    env["PYTHONPATH"] = path_with_library(env.get("PYTHONPATH", ""), identity.run.library)
    env.update(
        MUSTER_RUN_ID=identity.run.run_id,
        MUSTER_ATTEMPT=str(identity.attempt.number),
        MUSTER_CYCLE=str(cycle),
        MUSTER_RESUME="1" if identity.attempt.number or cycle else "0",
        MUSTER_OUTPUT_DIR=identity.run.output_dir,
        MUSTER_BEAT_FILE=identity.attempt.beat,
        MUSTER_CONTROL_DIR=control_directory(identity, cycle),
    )
    return env


def control_directory(identity: Identity, cycle: int) -> str:
    """Return the directory on this node's disk for control requests of the job's processes."""
    return f"{avoid_occupied(temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.node_index))}.ctl"


def remove_control_directories(identity: Identity) -> None:
    """Remove what a killed agent of this node has left of them, in any cycle."""
    parent, name = os.path.split(temp_dir(identity.run.run_id, identity.attempt.number, 0, identity.node_index))
    attempt, _, node_index = name.split(".")
    remove_private_children(parent, rf"{attempt}\.\d+\.{node_index}\.ctl")


def path_with_library(path: str, library: str) -> str:
    """Return PYTHONPATH with the run's library last, and without the library of an enclosing run."""
    kept = [entry for entry in path.split(os.pathsep) if os.path.basename(entry) != LIBRARY] if path else []
    return os.pathsep.join(kept if os.pathsep in library else [*kept, library])  # a colon cannot be escaped


def path_with_interpreter(path: str) -> str:
    """Return a PATH on which `python` is the job's interpreter, as if its environment were activated.

    System directories are never moved to the front: they would hide what environment modules put before them.
    """
    directory = os.path.dirname(sys.executable)
    if directory in SYSTEM_DIRECTORIES or shutil.which("python", path=path) == sys.executable:
        return path
    return directory + os.pathsep + path
