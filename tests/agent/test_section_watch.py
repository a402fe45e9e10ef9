"""The watch of a node's processes: what it reports, once, and what it keeps for later cycles."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.leader.leader_doubles import job, wait_until

from muster.agent import section_watch
from muster.agent.control.codec import Message
from muster.agent.control.messages import SectionReport
from muster.agent.job import Identity, Job
from muster.agent.section_watch import SectionWatch
from muster.rundir import RunPaths
from muster.sections import encode_record, record_path


class Watched:
    """A watch, the directory of its processes, and what it has sent."""

    def __init__(self, directory: Path, cycle: int = 1) -> None:
        run = RunPaths(str(directory / "run"))
        os.makedirs(run.root, exist_ok=True)
        self.identity = Identity(2, "n2", run, run.attempt(0), True)
        self.directory, self.sent = directory / "ctl", list[Message]()
        self.directory.mkdir(exist_ok=True)
        self.watch = SectionWatch(self.identity, str(self.directory), cycle, self.sent.append)

    def write(self, pid: int, **fields: Any) -> None:
        record = {"pid": pid, "rank": None, "step": None, "beat": None, "open": [], "durations": {}, **fields}
        Path(record_path(str(self.directory), pid)).write_bytes(encode_record(record))

    def reports(self) -> list[SectionReport]:
        return [message for message in self.sent if isinstance(message, SectionReport)]


def since(seconds: float, timeout: float | None = 5.0) -> dict[str, Any]:
    return {"name": "checkpoint", "since": time.monotonic() - seconds, "timeout": timeout}


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(section_watch, "SECTION_POLL_S", 0.01)
    monkeypatch.setattr(Job, "load", lambda run: job(hang_min_time=1.0))
    watched = Watched(tmp_path)
    yield watched
    await watched.watch.close()


async def test_an_overdue_section_is_reported_once_with_all_processes(watched: Watched) -> None:
    watched.write(os.getpid(), open=[since(60.0)])
    watched.write(os.getppid(), open=[since(1.0, timeout=3600.0)])
    await wait_until(watched.reports)
    (report,) = watched.reports()
    assert report.overdue and report.cycle == 1
    assert {one.pid: one.overdue for one in report.processes} == {os.getpid(): True, os.getppid(): False}
    watched.write(os.getpid(), open=[since(30.0)])  # another one
    await wait_until(lambda: len(watched.reports()) == 2)


async def test_a_report_on_request_has_all_processes(watched: Watched) -> None:
    watched.write(os.getpid(), open=[since(1.0, timeout=3600.0)], step=4)
    await watched.watch.report()
    (report,) = watched.reports()
    assert not report.overdue and [one.step for one in report.processes] == [4]


async def test_processes_that_have_ended_and_damaged_files_are_left_out(watched: Watched) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    watched.write(child, open=[since(60.0)])
    (watched.directory / "process-1").write_bytes(b"half")
    (watched.directory / "process-x").write_bytes(b"")
    await watched.watch.report()
    assert watched.reports() == []


async def test_times_are_kept_for_later_cycles_of_the_node(watched: Watched, tmp_path: Path) -> None:
    watched.write(os.getpid(), durations={"checkpoint": [2.0] * 10})
    await watched.watch.report()
    await watched.watch.close()
    kept = json.loads(Path(watched.identity.run.section_times(2)).read_text())
    assert kept == {"checkpoint": [2.0] * 10}
    later = Watched(tmp_path, cycle=2)
    later.write(os.getpid(), open=[since(60.0, timeout=None)])
    await wait_until(later.reports)
    assert [one.limit for one in later.reports()[0].processes] == [10.0]
    await later.watch.close()
