"""The lines that `muster run` prints about events without a terminal."""

from __future__ import annotations

import pytest

from muster.cli.display import Display, JsonDisplay
from muster.runs.follow import RunEvent


@pytest.mark.parametrize("state", ["ready", "restarting", "failed", "ended"])
def test_a_restarted_service_is_reported_without_control_characters(
    state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """That it is ready is no news, and its failure ends the run, which is told by itself."""
    told = {"event": "service", "service": "judge", "rank": 1, "host": "n1\x1b[2J", "reason": "exited with 3"}
    Display(2, ray=False).show(RunEvent({**told, "state": state}))
    said = capsys.readouterr().err
    assert ("service judge on n1\ufffd[2J exited with 3; restarting it" in said) == (state == "restarting")
    assert (said == "") == (state != "restarting") and "\x1b" not in said


@pytest.mark.parametrize(
    "name", ["node", "run", "service", "again", "driver_start", "events_lost", "of another version"]
)
@pytest.mark.parametrize("kind", [Display, lambda nodes, ray: JsonDisplay()])
def test_an_event_without_its_fields_or_with_foreign_ones_ends_nothing(name: str, kind: type[Display]) -> None:
    display = kind(2, ray=False)
    for fields in ({}, {"state": [], "rank": {}, "host": 7, "attempt": "x"}, {"state": "restarting"}):
        display.show(RunEvent({"event": name, **fields}))


def test_lost_events_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Display(2, ray=False).show(RunEvent({"event": "events_lost", "file": "/runs/r/attempt-0/events-0.jsonl"}))
    said = capsys.readouterr().err
    assert "/runs/r/attempt-0/events-0.jsonl" in said and "disk" in said and "the run itself is not affected" in said
