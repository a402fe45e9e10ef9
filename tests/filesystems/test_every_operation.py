"""A run survives a failure of the runs directory's server at each of its operations, one after another.

A first run without faults shows the operations: what is done to which file. Then, for each of them, a run meets the
fault at this moment, on the whole filesystem and for some seconds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.filesystems.faulty_filesystem import FaultyFilesystem, faulty_filesystem, why_no_fuse
from tests.filesystems.local_runs import FinishedRun, pattern_of, role_of, run_on

pytestmark = [
    pytest.mark.filesystems,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse())),
]

SHARDS = 8  # of the operations, so that several processes can share the work
FAULT_SECONDS = {"EIO": 4.0, "ESTALE": 4.0, "ENOTCONN": 4.0, "full": 4.0, "hang": 14.0}
LOST_SERVER_S = 60.0
ANSWERED_BY_KERNEL = ("release", "releasedir", "flush")  # no program sees the answers
# How Muster and the programs that it runs name a filesystem that failed.
BLAME = re.compile(
    "filesystem|runs directory|No space left|Input/output error|Stale file handle|endpoint is not connected"
)
QUIET = "sleep 2"  # a driver that writes nothing: what it does about a failing disk is not Muster's concern


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Each operation of a run without faults, as its name and the role of its file."""
    with faulty_filesystem(tmp_path_factory.mktemp("reference") / "filesystem") as filesystem:
        filesystem.record()
        done = run_on(filesystem, sys.executable, driver=QUIET)
        assert done.code == 0, done.describe()
        found = {(each.name, role_of(each.path)) for each in filesystem.operations()}
    return sorted((name, role) for name, role in found if name not in ANSWERED_BY_KERNEL)


def problem_of(done: FinishedRun) -> str | None:
    """Return what is wrong with the way a run ended; None if nothing is."""
    if done.lost_nodes():
        return "a node was lost"
    if done.code not in (0, 125):
        return f"exit code {done.code}"
    if done.code == 125 and not BLAME.search(done.err):
        return "the filesystem is not blamed"
    return None


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", FAULT_SECONDS)
def test_a_fault_at_any_operation_loses_no_node_and_leaves_a_true_outcome(
    operations: list[tuple[str, str]], tmp_path: Path, kind: str, shard: int
) -> None:
    problems = []
    for number, (name, role) in enumerate(operations[shard::SHARDS]):
        with faulty_filesystem(tmp_path / str(number)) as filesystem:
            filesystem.inject(kind, name, pattern_of(role), seconds=FAULT_SECONDS[kind], spreads=True)
            done = run_on(filesystem, sys.executable, driver=QUIET)
            if (problem := problem_of(done)) is not None:
                problems.append(f"{kind} at {name} {role}: {problem}\n{done.describe()}")
    assert not problems, f"{len(problems)} problems\n" + "\n\n".join(problems)


@pytest.mark.parametrize("kind", ["hang", "ENOTCONN"])
@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("link", r".*lead-0\.json"),
        ("write", r".*events-0\.jsonl"),
        ("link", r".*/outcome"),
    ],
    ids=["at the claim", "while the driver runs", "at the outcome"],
)
def test_a_server_that_is_gone_for_a_minute_costs_neither_a_node_nor_the_run(
    tmp_path: Path, kind: str, operation: str, path: str
) -> None:
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        filesystem.inject(kind, operation, path, seconds=LOST_SERVER_S, spreads=True)
        done = run_on(filesystem, sys.executable, driver=QUIET)
        assert done.code == 0 and not done.lost_nodes(), done.describe()


def test_stale_answers_change_nothing(filesystem_with_stale_answers: FaultyFilesystem) -> None:
    done = run_on(filesystem_with_stale_answers, sys.executable, driver=QUIET)
    assert done.code == 0 and not done.lost_nodes(), done.describe()


@pytest.fixture(params=[1.0, 5.0, 30.0])
def filesystem_with_stale_answers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FaultyFilesystem]:
    """Each node trusts for some seconds that a file is absent, and what it knows about a file."""
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        for rank in range(3):
            filesystem.inject("stale", "lookup|getattr", r".*/attempt-0/.*", rank=str(rank), seconds=request.param)
        yield filesystem
