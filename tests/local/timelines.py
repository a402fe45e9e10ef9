"""The timeline of the only run of a test."""

from __future__ import annotations

import json

import pytest
from tests.running import MusterCommand
from tests.views.timelines import adds_up

from muster.rundir import RunPaths
from muster.views.record import RunReader
from muster.views.timeline import Timeline, build_timeline


def seen(muster: MusterCommand) -> Timeline:
    """The timeline of the only run; it adds up, and to what the status says."""
    run = RunPaths(str(muster.run_dir()))
    record = RunReader(run).read()
    found = build_timeline(record)
    adds_up(found)
    timings, submission = record.status["timings"], json.loads((muster.run_dir() / "submission.json").read_text())
    assert found.start == min(submission["asked"], timings["job_start"])
    assert found.end == pytest.approx(timings["ended"], abs=10)  # two clock readings, maybe far apart on a busy machine
    return found
