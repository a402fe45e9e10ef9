"""The driver: the user's command, a child of the lead, in a scope of its own."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Mapping

from muster.agent.job import Identity, Job
from muster.process import Exit, Owned, Scope, SpawnError

# Variables that describe the step the agent runs in. A driver that starts steps of its own must not inherit them.
_STEP_SCOPED = re.compile(
    r"SLURM_(STEP.*|PROCID|LOCALID|NODEID|GTIDS|TASK_PID|SRUN_.*|LAUNCH_.*|CPU_BIND.*|MEM_BIND.*|DISTRIBUTION"
    r"|UMASK|TASKS_PER_NODE|NTASKS|NPROCS|CPUS_PER_TASK|OVERLAP|INPUTMODE|EXPORT_ENV)|PMI_.*|PMI2_.*|PMIX_.*"
)
NOT_STARTED = 127


def driver_environment(
    base: Mapping[str, str], job: Job, identity: Identity, cycle: int, ray_address: str | None
) -> dict[str, str]:
    """The job's environment, without what belongs to the step, and with what tells the driver where it is."""
    env = {name: value for name, value in base.items() if not _STEP_SCOPED.fullmatch(name)}
    for name in ("MUSTER_RANK", "MUSTER_HOST", "MUSTER_BACKEND", "MUSTER_JOB_START"):
        env.pop(name, None)
    env["PATH"] = path_with_interpreter(env.get("PATH", os.defpath))
    env.update(job.env)
    env.update(
        MUSTER_RUN_ID=identity.run.run_id,
        MUSTER_ATTEMPT=str(identity.attempt.number),
        MUSTER_CYCLE=str(cycle),
        MUSTER_RESUME="1" if identity.attempt.number or cycle else "0",
        MUSTER_OUTPUT_DIR=identity.run.output_dir,
        PYTHONUNBUFFERED=env.get("PYTHONUNBUFFERED", "1"),  # so that its output is seen when it is written
    )
    if ray_address is None:
        env.pop("RAY_ADDRESS", None)
    else:
        env["RAY_ADDRESS"] = ray_address
    return env


def path_with_interpreter(path: str) -> str:
    """PATH on which `python` is the interpreter chosen for the job."""
    if shutil.which("python", path=path) == sys.executable:
        return path
    return os.path.dirname(sys.executable) + os.pathsep + path


class Driver:
    """Starts the command, waits for it, and ends all that is left of it."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._scope = Scope("driver")
        self._process: Owned | None = None
        self._ending: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Open the scope ahead of time: the driver is to start the moment the last node is ready."""
        await self._scope.open()

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Returns when the command has ended and nothing of it is left."""
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await self._scope.spawn(command, env=env, cwd=cwd, stdout=log, stderr=log)
        except SpawnError as error:
            os.write(log, f"muster: the driver could not be started: {error}\n".encode())
            await self._scope.close(0)
            return Exit(code=NOT_STARTED)
        finally:
            os.close(log)
        exit = await self._process.wait()
        await self._scope.close(grace=0.5)
        return exit

    def end(self, grace: float) -> None:
        """TERM now, KILL after the grace; `run` then returns."""
        self._ending = asyncio.ensure_future(self._end(grace))

    async def _end(self, grace: float) -> None:
        await self._scope.close(grace)

    async def close(self) -> None:
        await self._scope.close(0)
