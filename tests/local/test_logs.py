"""The output of a run is stored once, within its limit, and every reader that follows it gets all of it."""

from __future__ import annotations

from pathlib import Path

from tests.running import MusterCommand

from muster.process.log_segments import SEGMENT_COUNT, find_segments, segment_path

LINES = 200_000
MANY_LINES = f"for n in range({LINES}): print(n, 'x' * 40)"


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_a_driver_s_output_is_stored_once(muster: MusterCommand) -> None:
    done = muster.local("--", "python", "-c", MANY_LINES, nodes=1)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == LINES
    assert size_of(muster.run_dir()) < 1.5 * len(done.stdout)
    assert done.stdout == (muster.run_dir() / "attempt-0" / "logs" / "driver.log").read_text()


def test_a_long_log_keeps_its_beginning_and_end_and_followers_miss_nothing(muster: MusterCommand) -> None:
    done = muster.local("--log-limit", "1M", "--", "python", "-c", MANY_LINES, nodes=1)
    log = str(muster.run_dir() / "attempt-0" / "logs" / "driver.log")
    starts = find_segments(log)
    kept = sum(Path(segment_path(log, start)).stat().st_size for start in starts)
    assert len(starts) == SEGMENT_COUNT and kept <= 1.01 * (1 << 20)
    numbers = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith("muster: ")]
    assert numbers[0] == "0" and numbers[-1] == str(LINES - 1) and len(set(numbers)) == len(numbers)
    missing = LINES - len(numbers)  # on a busy machine: then a line says so
    assert missing == 0 or "bytes of output are not kept here" in done.stdout
    printed = muster("logs").stdout
    assert printed.startswith("0 x") and "bytes of output are not kept here, because of --log-limit" in printed
    assert muster("logs", "--tail", "2").stdout == "".join(f"{n} {'x' * 40}\n" for n in (LINES - 2, LINES - 1))


def test_ranks_and_guests_share_the_limit(muster: MusterCommand) -> None:
    options = ("--log-limit", "1M", "--procs-per-node", "2")
    done = muster.local(*options, "--", "python", "-c", MANY_LINES, nodes=1)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith(f"{LINES - 1} ")
    logs = muster.run_dir() / "attempt-0" / "logs"
    for log in (logs / "driver.log", logs / "cycle-0" / "rank-0001.log"):
        assert len(find_segments(str(log))) == SEGMENT_COUNT, sorted(logs.rglob("*"))
    assert not (logs / "cycle-0" / "rank-0000.log").exists()
    assert muster("logs", "--rank", "0", "--tail", "1").stdout == f"{LINES - 1} {'x' * 40}\n"
    assert muster("logs", "--rank", "1", "--tail", "1").stdout == f"{LINES - 1} {'x' * 40}\n"
    assert size_of(muster.run_dir()) < 4 << 20
