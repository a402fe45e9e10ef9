"""An agent that leads a run of one node ends it truly although the server fails at any of its operations.

`test_every_operation.py` strikes where a run first does something to a file, which is often another program than the
agent. Here the operations are those of an agent alone, which runs in this process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import TOKEN
from tests.agent.leader.leader_doubles import job
from tests.filesystems.faulty_filesystem import FaultyFilesystem, Operation, faulty_filesystem, why_no_fuse
from tests.filesystems.local_runs import role_of

from muster.agent import event_loop, run_directory
from muster.agent.follower import Follower
from muster.agent.job import Identity
from muster.process.lease import ProcessLease
from muster.rundir import RunPaths, read_record, write_json

pytestmark = [
    pytest.mark.filesystems,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse())),
]

SHARDS = 4  # of the operations, so that several processes can share the work
FAULT_S = 1.5
ENDS_QUIETLY = ("release", "releasedir")  # the kernel ignores their answers
DRIVER_CODE = 3
FIELDS: dict[str, Any] = {
    **{"nodes": 1, "command": ["sh", "-c", f"echo text; exit {DRIVER_CODE}"], "workdir": "/", "log_limit": 1 << 20},
    **{"gather_timeout": 60.0, "start_timeout": 60.0, "last_call": 0.0, "on_node_loss": "fail", "segment": 1},
    **{"max_restarts": 0, "no_progress_limit": 0, "large_from": 64, "ray_logs": "never", "services": {}},
}


@dataclass(frozen=True)
class EndedAgent:
    """What an agent has returned and recorded, and its operations."""

    code: int
    outcome: dict[str, Any]
    output: str
    operations: list[Operation]


def run_agent(filesystem: FaultyFilesystem, kind: str | None = None, skip: int = 0) -> EndedAgent:
    """Run an agent until it ends; from its operation number `skip` on, the server fails for FAULT_S."""
    run = RunPaths(str(filesystem.path / "muster-runs" / "x-20260101T000000-1a2b"))
    attempt = run.attempt(0)
    for directory in ("logs", "nodes"):
        (Path(attempt.root) / directory).mkdir(parents=True)
    Path(attempt.hosts).write_text("n0\n")
    Path(attempt.steps_log).touch()
    write_json(run.env, {})
    fields = job(**FIELDS)
    write_json(run.job, {name: getattr(fields, name) for name in fields.__dataclass_fields__})
    filesystem.record()
    if kind is not None:
        filesystem.inject(kind, skip=skip, seconds=FAULT_S, spreads=True)
    code = event_loop.run(Follower(Identity(0, "n0", run, attempt, local=True), TOKEN, ProcessLease()).run())
    operations = filesystem.operations()
    filesystem.clear()
    return EndedAgent(code, read_record(attempt.outcome), Path(attempt.driver_log).read_text(), operations)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "RETRY_INTERVAL_S", 0.2)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The number of the first operation of each kind: what is done to which file, on the event loop or on a thread."""
    with faulty_filesystem(tmp_path_factory.mktemp("reference") / "filesystem") as filesystem:
        operations = run_agent(filesystem).operations
    first: dict[object, int] = {}
    for number, each in enumerate(operations):
        if each.name not in ENDS_QUIETLY:
            first.setdefault((each.name, role_of(each.path), each.thread == os.getpid()), number)
    return list(first.values())


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", ["EIO", "ESTALE", "ENOTCONN", "full", "hang"])
def test_a_fault_at_any_operation_of_an_agent_changes_no_outcome(
    numbers: list[int], tmp_path: Path, kind: str, shard: int
) -> None:
    problems = []
    for number in numbers[shard::SHARDS]:
        with faulty_filesystem(tmp_path / str(number)) as filesystem:
            ended = run_agent(filesystem, kind, number)
        # On a full disk the job script records the outcome. Output during an error is dropped, and counted in the log.
        recorded = ended.outcome.get("exit_code", DRIVER_CODE if kind == "full" else None)
        if (ended.code, recorded) != (DRIVER_CODE, DRIVER_CODE) or (kind == "hang" and ended.output != "text\n"):
            at = ended.operations[number]
            problems.append(f"{kind} at {at.name} {role_of(at.path)}, operation {number}: {ended.outcome} {ended.code}")
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
