"""Start one task per virtual node on this machine, and report ended tasks as srun does.

Usage: python -m muster.launch.local_launcher NODES COMMAND...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from muster.process import Exit, ManagedProcess, Scope

RANK_VARIABLE, HOST_VARIABLE = "MUSTER_TASK", "MUSTER_NODE"
STEP_STOP_GRACE_S = 5.0  # between SIGTERM and SIGKILL: a stopped process does not react to SIGTERM
REPORT_TRIES, REPORT_RETRY_S = 60, 1.0  # without its report, an ended task looks like a silent node
LOST_LAUNCHER_GRACE_S = 30.0  # for the agents to stop their drivers if this launcher is killed


def host_name(node_index: int) -> str:
    return f"node-{node_index}"


async def launch(nodes: int, command: list[str]) -> int:
    """Run the command once per node and return the highest exit code."""
    async with Scope("step", lost_owner_grace=LOST_LAUNCHER_GRACE_S) as scope:
        terminated = asyncio.Event()  # by the job script: tasks hold the step
        # Before the first task starts: a signal during the start must not end this launcher without its tasks.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        tasks = [await _start(scope, node_index, command) for node_index in range(nodes)]
        closing = asyncio.ensure_future(_close_when(terminated, scope))
        exits = await asyncio.gather(*(_report(node_index, task) for node_index, task in enumerate(tasks)))
        if terminated.is_set():
            await closing
        else:
            closing.cancel()  # leaving the scope closes it
    return max(exit.shell_code for exit in exits)


async def _close_when(terminated: asyncio.Event, scope: Scope) -> None:
    await terminated.wait()
    await scope.close(STEP_STOP_GRACE_S)


async def _start(scope: Scope, node_index: int, command: list[str]) -> ManagedProcess:
    env = {**os.environ, RANK_VARIABLE: str(node_index), HOST_VARIABLE: host_name(node_index)}
    return await scope.spawn(command, env=env, cwd=os.getcwd(), stdout=1, stderr=2)


async def _report(node_index: int, task: ManagedProcess) -> Exit:
    exit = await task.wait()
    if exit.shell_code:
        how = f"Exited with exit code {exit.code}" if exit.code is not None else f"The task {exit}"
        line = f"step: error: {host_name(node_index)}: task {node_index}: {how}\n"
        for _ in range(REPORT_TRIES):  # the file that it goes to may be on a filesystem that fails for a while
            with contextlib.suppress(OSError):
                os.write(2, line.encode())
                break
            await asyncio.sleep(REPORT_RETRY_S)
    return exit


if __name__ == "__main__":
    sys.exit(asyncio.run(launch(int(sys.argv[1]), sys.argv[2:])))
