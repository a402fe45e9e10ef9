"""Runs survive a filesystem that fails for a while: no node is lost, outcomes are true, errors name the cause."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.filesystems.faulty_filesystem import FaultyFilesystem, faulty_filesystem, why_no_fuse
from tests.filesystems.local_runs import pattern_of, role_of, run_on

pytestmark = pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))

LONGER_THAN_A_LEASE_S = 14.0


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[FaultyFilesystem]:
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        yield filesystem


@pytest.mark.parametrize("error", ["EPERM", "EOPNOTSUPP", "ENOSYS", "EMLINK"])
def test_a_run_needs_no_hard_links(filesystem: FaultyFilesystem, error: str) -> None:
    filesystem.inject(error, "link")
    done = run_on(filesystem, sys.executable)
    assert done.succeeded() and not done.lost_nodes(), done.describe()
    assert list(filesystem.behind.glob("muster-runs/*/attempt-0/lead-0.json.claim"))


def test_a_filesystem_on_which_no_leader_can_be_claimed_is_named(filesystem: FaultyFilesystem) -> None:
    """Neither a hard link nor a renamed directory: the run ends soon, and says why."""
    filesystem.inject("EOPNOTSUPP", "link")
    filesystem.inject("EOPNOTSUPP", "mkdir", r".*\.claim.*")
    done = run_on(filesystem, sys.executable)
    assert done.code == 125
    assert "the filesystem of the run directory (fuse.faulty) failed" in done.err and "not supported" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "path"),
    [("write", r".*events-0\.jsonl"), ("link", r".*lead-0\.json"), ("rename", r".*nodes/0001\.json")],
    ids=["while the driver starts", "while the leader is claimed", "while a node arrives"],
)
def test_a_server_that_hangs_for_longer_than_a_lease_costs_no_node(
    filesystem: FaultyFilesystem, operation: str, path: str
) -> None:
    filesystem.inject("hang", operation, path, seconds=LONGER_THAN_A_LEASE_S, spreads=True)
    done = run_on(filesystem, sys.executable)
    assert done.succeeded() and not done.lost_nodes(), done.describe()
    assert filesystem.hits()[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("error", ["EIO", "ESTALE", "ENOTCONN"])
@pytest.mark.parametrize(
    ("operation", "path"),
    [("rename", r".*nodes/0000\.json"), ("opendir", r".*/attempt-0"), ("link", r".*/outcome")],
    ids=["at the start", "when it is polled", "at the end"],
)
def test_a_server_that_answers_with_errors_for_seconds_changes_nothing(
    filesystem: FaultyFilesystem, error: str, operation: str, path: str
) -> None:
    filesystem.inject(error, operation, path, seconds=4.0, spreads=True)
    done = run_on(filesystem, sys.executable)
    assert done.succeeded() and not done.lost_nodes(), done.describe()
    assert filesystem.hits()[0] > 0


def test_the_exit_code_of_the_driver_survives_a_server_that_is_lost_at_the_end(filesystem: FaultyFilesystem) -> None:
    filesystem.inject("ENOTCONN", "link", r".*/outcome", seconds=6.0, spreads=True)
    done = run_on(filesystem, sys.executable, driver="exit 3")
    assert done.code == 3, done.describe()


def test_a_full_filesystem_is_named(filesystem: FaultyFilesystem) -> None:
    filesystem.inject("full")
    done = run_on(filesystem, sys.executable)
    assert done.code == 125 and "No space left on device" in done.err and str(filesystem.path) in done.err


def test_a_role_is_the_same_in_each_run_and_its_pattern_matches_its_paths() -> None:
    for path in (
        "muster-runs/x-20260101T000000-1a2b/attempt-0/status-0.json.host-1.17.tmp",
        "muster-runs/x-20260101T000000-1a2b/attempt-0/lead-0.json",
        "muster-runs",
    ):
        role = role_of(path)
        assert "1a2b" not in role and "17" not in role
        assert re.fullmatch(pattern_of(role), path), (pattern_of(role), path)
