"""A real run on virtual nodes of this machine, paused for measurements of its agents.

Its driver reads from a FIFO until it is released, so that the run is idle meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shlex
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from muster.api import prepare
from muster.launch.local_launcher import RANK_VARIABLE
from muster.launch.submit import attached
from muster.rundir import AttemptPaths, RunPaths, read_json
from muster.runs.follow import RunEvent, RunResult, follow
from muster.spec import JobSpec

HOLD = 'read -r _ <"$0"'  # bash -c HOLD fifo
DEADLINE_S = 180.0
TRACE = ("strace", "-f", "--seccomp-bpf", "-qq", "-ttt", "-y", "-s", "256", "-e", "trace=%file,%process,getdents64")
_PRELUDE = "  bash -c "  # how the job script starts a task's prelude


class RunFailed(Exception):
    """The run did not start or did not succeed."""


@dataclasses.dataclass(frozen=True)
class HeldRun:
    """A run whose driver has started and waits."""

    run: RunPaths
    attempt: AttemptPaths
    driver_start: float

    def agent_pid(self, rank: int) -> int:
        record = read_json(self.attempt.node_record(rank))
        if record is None:
            raise RunFailed(f"rank {rank} has not written its node record")
        return int(record["pid"])


@contextmanager
def private_home() -> Iterator[Path]:
    """Yield a temporary directory that is also HOME, so that Ray and Muster do not touch the user's files."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
        for name in [name for name in os.environ if name.startswith(("RAY_", "SLURM_", "MUSTER_", "XDG_"))]:
            del os.environ[name]
        os.environ["HOME"] = directory
        try:
            yield Path(directory)
        finally:
            os.environ.clear()
            os.environ.update(before)


@asynccontextmanager
async def held_run(
    directory: Path, python: str, nodes: int, *, ray: bool, traced: int | None = None, trace: Path | None = None
) -> AsyncIterator[HeldRun]:
    """Yield when the driver has started; `traced` is the rank whose task runs under strace, writing to `trace`."""
    fifo = directory / "hold"
    os.mkfifo(fifo)
    spec = JobSpec(
        command=["bash", "-c", HOLD, str(fifo)],
        backend="local",
        nodes=nodes,
        ray=ray,
        python=python,
        runs_dir=str(directory / "runs"),
    )
    prepared = prepare(spec)
    if traced is not None:
        assert trace is not None
        prepared = dataclasses.replace(prepared, script=traced_script(prepared.script, directory, traced, trace))
    try:
        async with attached(prepared):
            events = follow(prepared.run)
            yield await asyncio.wait_for(_driver_started(prepared.run, events), DEADLINE_S)
            fifo.write_text("\n")
            await asyncio.wait_for(_ended(events), DEADLINE_S)
    finally:
        fifo.unlink()


def traced_script(script: str, directory: Path, rank: int, trace: Path) -> str:
    """Return the job script with a wrapper of the prelude's shell that runs one task under strace."""
    shell = directory / "traced-bash"
    strace = shlex.join([*TRACE, "-o", str(trace)])
    shell.write_text(f'#!/bin/bash\n[ "${RANK_VARIABLE}" = {rank} ] && exec {strace} bash "$@"\nexec bash "$@"\n')
    shell.chmod(0o755)
    if script.count(_PRELUDE) != 1:
        raise RunFailed("the job script starts preludes differently: adapt _PRELUDE in bench/local_run.py")
    return script.replace(_PRELUDE, f"  {shlex.quote(str(shell))} -c ")


async def _driver_started(run: RunPaths, events: AsyncIterator[object]) -> HeldRun:
    async for item in events:
        if isinstance(item, RunEvent) and item.fields["event"] == "driver_start":
            attempt = run.newest_attempt()
            assert attempt is not None
            return HeldRun(run, attempt, item.fields["time"])
        if isinstance(item, RunResult):
            raise RunFailed(f"the run ended before its driver started: {item.end_reason} {json.dumps(item.error)}")
    raise RunFailed("the run ended without a result")


async def _ended(events: AsyncIterator[object]) -> None:
    async for item in events:
        if isinstance(item, RunResult) and item.exit_code:
            raise RunFailed(f"the run ended with {item.exit_code}: {item.end_reason}")
