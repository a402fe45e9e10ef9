"""The archive of Ray's logs: tails of all logs within a size limit, written atomically."""

from __future__ import annotations

import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.ray.session_logs import MIN_TAIL_BYTES, ArchiveOptions, archive_logs, choose_tails, should_keep

MB = 1024**2
SIZES = st.lists(st.integers(0, 3 * MB), max_size=60)


def kept(sizes: list[int], max_bytes: int) -> list[int]:
    """Return how many bytes are kept of logs of these sizes, without those left out."""
    named = [(str(number), size) for number, size in enumerate(sizes)]
    return [sizes[int(name)] - offset for name, offset in choose_tails(named, max_bytes)]


@pytest.mark.parametrize(
    ("policy", "failed", "keeps"),
    [
        ("always", False, True),
        ("always", True, True),
        ("on-failure", False, False),
        ("on-failure", True, True),
        ("never", False, False),
        ("never", True, False),
    ],
)
def test_when_logs_are_kept(policy: str, failed: bool, keeps: bool) -> None:
    assert should_keep(policy, failed) is keeps


def test_logs_within_the_bound_are_whole_and_empty_ones_left_out() -> None:
    assert choose_tails([("raylet.out", 1000), ("raylet.err", 0), ("worker", MB)], 8 * MB) == [
        ("raylet.out", 0),
        ("worker", 0),
    ]


def test_one_long_log_takes_nothing_from_the_short_ones() -> None:
    short, long, other = kept([50_000, 500 * MB, 70_000], 1 * MB)
    assert (short, other) == (50_000, 70_000)
    assert 0.8 * MB < long < 1 * MB


def test_long_logs_share_what_the_short_ones_leave() -> None:
    first, short, second = kept([5 * MB, 10_000, 9 * MB], 1 * MB)
    assert short == 10_000
    assert abs(first - second) <= 1 and first + second > 0.9 * MB


def test_where_there_are_too_many_the_first_have_a_useful_piece_each() -> None:
    pieces = kept([1 * MB] * 1000, 256 * 1024)
    assert 20 < len(pieces) < 64
    assert all(piece >= MIN_TAIL_BYTES for piece in pieces)


@given(SIZES, st.integers(1, 4 * MB))
def test_what_is_chosen_stays_within_the_bound_and_each_log(sizes: list[int], max_bytes: int) -> None:
    pieces = kept(sizes, max_bytes)
    assert sum(pieces) <= max_bytes
    named = [(str(number), size) for number, size in enumerate(sizes)]
    assert all(0 <= offset < sizes[int(name)] for name, offset in choose_tails(named, max_bytes))


MakeLogs = Callable[[dict[str, bytes]], str]


@pytest.fixture
def logs(tmp_path: Path) -> MakeLogs:
    def make(contents: dict[str, bytes]) -> str:
        for name, data in contents.items():
            path = tmp_path / "session" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return str(tmp_path / "session")

    return make


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_an_archive_holds_the_logs_under_the_nodes_name_for_the_owner_alone(tmp_path: Path, logs: MakeLogs) -> None:
    directory = logs({"raylet.out": b"up\n", "events/event.log": b"{}\n"})
    os.symlink("/etc/passwd", os.path.join(directory, "elsewhere"))
    archive_logs(directory, ArchiveOptions(str(tmp_path / "kept" / "n1"), MB))
    (archive,) = (tmp_path / "kept").iterdir()
    assert members(archive) == {"n1/raylet.out": b"up\n", "n1/events/event.log": b"{}\n"}
    assert archive.name == "n1.tar.gz" and archive.stat().st_mode & 0o777 == 0o600


def test_of_a_long_log_the_end_is_kept_and_says_so(tmp_path: Path, logs: MakeLogs) -> None:
    text = b"".join(b"line %d\n" % number for number in range(100_000))
    archive_logs(logs({"gcs_server.out": text}), ArchiveOptions(str(tmp_path / "n1"), 100_000))
    end = members(tmp_path / "n1.tar.gz")["n1/gcs_server.out"]
    first, _, rest = end.partition(b"\n")
    assert first == b"[muster: the first %d bytes are left out]" % (len(text) - len(rest))
    assert text.endswith(rest) and len(rest) > 70_000


@pytest.mark.parametrize("max_bytes", [32 * 1024, 300_000, 2 * MB])
def test_an_archive_stays_within_the_bound_even_if_nothing_in_it_compresses(
    tmp_path: Path, logs: MakeLogs, max_bytes: int
) -> None:
    noise = random.Random(max_bytes)
    name = "python-core-worker-" + 100 * "x"
    directory = logs({f"{name}-{n}.log": noise.randbytes(noise.choice([10, 5_000, MB // 4])) for n in range(40)})
    archive_logs(directory, ArchiveOptions(str(tmp_path / "n1"), max_bytes))
    assert 0 < (tmp_path / "n1.tar.gz").stat().st_size <= max_bytes


def test_where_there_is_no_time_for_all_the_daemons_go_first(tmp_path: Path, logs: MakeLogs) -> None:
    contents = {f"worker-{n}.err": b"x" * 10 for n in range(100)}
    directory = logs({**contents, "gcs_server.out": b"gcs", "raylet.out": b"raylet"})
    for daemon in ("gcs_server.out", "raylet.out"):
        os.utime(os.path.join(directory, daemon), (0, 0))
    archive_logs(directory, ArchiveOptions(str(tmp_path / "n1"), 32 * 1024))
    assert list(members(tmp_path / "n1.tar.gz"))[:2] == ["n1/gcs_server.out", "n1/raylet.out"]


def test_without_logs_there_is_no_archive(tmp_path: Path) -> None:
    archive_logs(str(tmp_path / "no-such-session"), ArchiveOptions(str(tmp_path / "kept" / "n1"), MB))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_on_a_full_disk_there_is_no_archive_and_no_partial_file(
    tmp_path: Path, logs: MakeLogs, caplog: pytest.LogCaptureFixture
) -> None:
    directory = logs({"raylet.out": random.Random(1).randbytes(2 * MB)})
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(small)], check=True)
    try:
        archive_logs(directory, ArchiveOptions(str(small / "n1"), 8 * MB))
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert "Ray's logs could not be kept: [Errno 28]" in caplog.text
