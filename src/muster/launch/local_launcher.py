"""Start one task per virtual node on this machine, and report ended tasks as srun does.

Usage: python -m muster.launch.local_launcher NODES COMMAND...
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from muster.process import CloseResult, Exit, ManagedProcess, Scope

RANK_VARIABLE, HOST_VARIABLE = "MUSTER_TASK", "MUSTER_NODE"
STEP_STOP_GRACE_S = 5.0  # between SIGTERM and SIGKILL: a stopped process does not react to SIGTERM
LOST_LAUNCHER_GRACE_S = 30.0  # for the agents to stop their drivers if this launcher is killed


def host_name(rank: int) -> str:
    return f"node-{rank}"


async def launch(nodes: int, command: list[str]) -> int:
    """Run the command once per node and return the highest exit code."""
    async with Scope("step", lost_owner_grace=LOST_LAUNCHER_GRACE_S) as scope:
        tasks = [await _start(scope, rank, command) for rank in range(nodes)]
        closing: list[asyncio.Future[CloseResult]] = []  # after SIGTERM from the job script: tasks hold the step
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(
            signal.SIGTERM, lambda: closing.append(asyncio.ensure_future(scope.close(STEP_STOP_GRACE_S)))
        )
        exits = await asyncio.gather(*(_report(rank, task) for rank, task in enumerate(tasks)))
    return max(exit.shell_code for exit in exits)


async def _start(scope: Scope, rank: int, command: list[str]) -> ManagedProcess:
    env = {**os.environ, RANK_VARIABLE: str(rank), HOST_VARIABLE: host_name(rank)}
    return await scope.spawn(command, env=env, cwd=os.getcwd(), stdout=1, stderr=2)


async def _report(rank: int, task: ManagedProcess) -> Exit:
    exit = await task.wait()
    if exit.shell_code:
        how = f"Exited with exit code {exit.code}" if exit.code is not None else f"The task {exit}"
        print(f"step: error: {host_name(rank)}: task {rank}: {how}", file=sys.stderr, flush=True)
    return exit


if __name__ == "__main__":
    sys.exit(asyncio.run(launch(int(sys.argv[1]), sys.argv[2:])))
