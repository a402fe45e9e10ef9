"""No event loop waits for the filesystem of the run directory: the server sees which thread makes each call.

The loop of an agent runs in the first thread of its process, that of a torchrun node in the thread of its session.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.filesystems.faulty_filesystem import FaultyFilesystem, Operation, faulty_filesystem, why_no_fuse
from tests.filesystems.local_runs import run_on
from tests.running import wait_for
from tests.torch.failover_game import FailoverGame, leave_all, recalled

from muster.election import follower

pytestmark = pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))

NOT_AWAITED = ("release", "releasedir")  # the kernel does not wait for their answers
RUNS = "0"  # what the kernel shows as the call of a thread that is in none
STUCK_S = 2.0  # in one call: a busy machine lets a loop wait to run, but then it waits in no call
HANG_S = 5.0  # less than a lease, so that a run with a loop that waits ends soon, too
SERVICE = {"command": ["sh", "-c", "echo serving; exec sleep 1000"], "ready": {"log": "serving"}}
# Fails in the first cycle; in the second it lasts until the spare's check has run.
FAIL_THEN_SUCCEED = "[ $MUSTER_CYCLE = 1 ] || exit 3; until [ -s checked ]; do sleep 0.1; done"


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[FaultyFilesystem]:
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        filesystem.record()
        yield filesystem


def awaited_by_loops(filesystem: FaultyFilesystem) -> list[Operation]:
    """Return the calls that the first threads of the agents waited for while their loops ran."""
    found = []
    records = list(filesystem.behind.glob("muster-runs/*/attempt-*/nodes/*.json"))
    assert records
    for record in records:
        pid = json.loads(record.read_text())["pid"]
        own = [each for each in filesystem.operations() if pid in (each.process, each.thread)]
        others = [position for position, each in enumerate(own) if each.thread != pid]
        assert others, f"the filesystem saw no thread of {record.name}"
        found += [each for each in own[others[0] : others[-1]] if each.thread == pid and each.name not in NOT_AWAITED]
    return found


class LoopSampler(threading.Thread):
    """Notes the calls, other than the wait for events, in which the loops of a run's agents stay for STUCK_S."""

    def __init__(self, behind: Path) -> None:
        super().__init__(daemon=True)
        self._behind, self._over = behind, threading.Event()
        self._since: dict[Path, tuple[str, float]] = {}  # the call in which each loop is, and since when
        self._idle = call_of_an_idle_loop()
        self.seen: set[str] = set()  # the agents whose loops were found waiting for events
        self.stuck: set[tuple[str, str]] = set()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for record in self._behind.glob("muster-runs/*/attempt-*/nodes/*.json"):
                with contextlib.suppress(OSError, ValueError):
                    self._sample(record, Path(f"/proc/{json.loads(record.read_text())['pid']}/wchan").read_text())

    def _sample(self, record: Path, call: str) -> None:
        now = time.monotonic()
        before, since = self._since.get(record, ("", now))
        self._since[record] = call, since if call == before else now
        if call == self._idle:
            self.seen.add(record.stem)
        if call not in (self._idle, RUNS) and now - self._since[record][1] >= STUCK_S:
            self.stuck.add((record.stem, call))

    def finish(self) -> None:
        self._over.set()
        self.join()


def call_of_an_idle_loop() -> str:
    """Return where this kernel shows a thread that waits for events."""
    with select.epoll() as events:
        waiting = threading.Thread(target=events.poll, args=(60,))
        waiting.start()
        wchan = Path(f"/proc/self/task/{waiting.native_id}/wchan")
        idle = wait_for("the wait for events", lambda: call if "poll" in (call := wchan.read_text()) else None)
        first, second = os.pipe()
        os.close(second)
        events.register(first)  # ends the wait
        waiting.join()
        os.close(first)
        return idle


def test_loops_wait_only_for_events_while_the_filesystem_hangs(filesystem: FaultyFilesystem) -> None:
    """A loop may also wait for a process or a thread that waits for the filesystem."""
    sampler = LoopSampler(filesystem.behind)
    sampler.start()
    filesystem.inject("hang", "write", r".*events-0\.jsonl", seconds=HANG_S, spreads=True)
    done = run_on(filesystem, sys.executable)
    sampler.finish()
    assert done.succeeded(), done.describe()
    assert filesystem.hits()[0] > 0 and "0000" in sampler.seen
    assert sampler.stuck == set()


def test_no_agent_waits_while_gangs_services_checks_and_restarts_run(filesystem: FaultyFilesystem) -> None:
    scratch = filesystem.path / "scratch"
    scratch.mkdir()
    checked = filesystem.path.parent / "checked"
    job = {
        "services": {"idle": SERVICE},
        "health_check": f"echo checked >> {checked}",
        "spare_check_interval": 0.2,
        "spares": 1,
        "procs_per_node": 1,
        "max_restarts": 1,
        "restart_on_driver_failure": True,
        "workdir": str(filesystem.path.parent),
    }
    file = filesystem.path.parent / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    options = ["--file", str(file)]
    done = run_on(filesystem, sys.executable, 2, FAIL_THEN_SUCCEED, options, {"TMPDIR": str(scratch)})
    assert done.code == 0, done.describe()
    assert awaited_by_loops(filesystem) == []


def test_no_agent_waits_while_a_driver_fails_whose_log_is_limited(filesystem: FaultyFilesystem) -> None:
    done = run_on(filesystem, sys.executable, driver="echo failed; exit 3", options=["--log-limit", "1M"])
    assert done.code == 3, done.describe()
    assert awaited_by_loops(filesystem) == []


@pytest.mark.ray
def test_no_agent_waits_while_ray_runs(filesystem: FaultyFilesystem) -> None:
    done = run_on(filesystem, sys.executable, nodes=1, driver="echo done", ray=True)
    assert done.code == 0, done.describe()
    assert awaited_by_loops(filesystem) == []


def test_no_torchrun_node_waits_while_coordinators_are_elected_and_the_job_ends(
    filesystem: FaultyFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "FENCE_S", 0.3)  # the members' wait; no lease expires here
    monkeypatch.setattr(follower, "CLAIM_STAGGER_S", 0.5)
    game = FailoverGame(filesystem.path / "torchrun-run")
    first, second, spare = game.running(3, spares=1)
    loops = {player.session._thread.native_id for player in game.players}
    assert None not in loops and threading.get_native_id() not in loops
    assert first.joined() and second.joined()
    game.crash(first)
    recalled(second)
    second.join()
    assert {second.joined().number, spare.joined().number} == {2}
    assert leave_all(second, spare) == [0, 0]
    operations = filesystem.operations()
    assert any(each.name == "link" for each in operations)  # the election was on this filesystem
    assert [each for each in operations if each.thread in loops and each.name not in NOT_AWAITED] == []
