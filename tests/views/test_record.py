"""The contents of a run directory, read as they grow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.views.synthetic import START, SyntheticRun
from tests.views.timelines import adds_up, seen_of

from muster.rundir import RunPaths, write_json
from muster.views.record import RunReader
from muster.views.timeline import build_timeline


def test_torn_and_foreign_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.lines[3:3] = ['{"time": 17600', '{"time": "soon", "event": "node"}', "[1, 2]", '{"event": {}, "time": 1}', ""]
    run.lines.append('{"time": 1760000090.0, "event": "node", "rank": "x", "host": 7, "state": []}')
    run.ends()
    with open(run.attempt.events(), "ab") as file:
        file.write(b'\xff\xfe\0\0\n{"time": 1760000099.0, "ev')
    record = RunReader(run.paths).read()
    adds_up(build_timeline(record))
    assert record.attempts[0].torn == 5


def test_only_what_is_new_is_read_and_a_line_may_come_in_two_parts(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    whole = Path(run.attempt.events()).read_bytes()
    Path(run.attempt.events()).write_bytes(whole[:700])
    reader = RunReader(run.paths, lambda: START + 100.0)
    before = len(reader.read().attempts[0].events)
    with open(run.attempt.events(), "ab") as file:
        file.write(whole[700:])
    record = reader.read()
    assert before < len(record.attempts[0].events) == len(run.lines)
    assert record.attempts[0].torn == 0


def test_a_leader_that_was_killed_leaves_the_end_to_the_outcome(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    write_json(run.attempt.outcome, {"exit_code": 125, "end_reason": "the leader is gone"})
    os.utime(run.attempt.outcome, (run.now + 7.0, run.now + 7.0))
    assert seen_of(run.paths).end == pytest.approx(run.now + 7.0)


def test_an_end_recorded_days_later_is_dated_to_the_last_update(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.write("running")
    write_json(run.attempt.outcome, {"exit_code": 125, "end_reason": "Slurm job 4711 is NODE_FAIL"})
    os.utime(run.attempt.outcome, (run.now + 200_000.0,) * 2)
    assert seen_of(run.paths).end == pytest.approx(run.now)


def test_times_never_decrease_within_an_attempt_even_where_clocks_differ(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    for time in (START + 50.0, START + 40.0, START + 60.0):
        run.lines.append(json.dumps({"time": time, "event": "note", "rank": 0}))
    run.write("running")
    (attempt,) = RunReader(run.paths).read().attempts
    assert [event.time - START for event in attempt.events] == [50.0, 50.0, 60.0]
    assert attempt.events[1].fields["time"] == START + 40.0 and attempt.events[1].node_index == 0


def test_events_that_a_fenced_leader_wrote_after_its_successor_began_are_left_out(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    for term, times in {0: (10.0, 20.0, 31.0, 25.0), 2: (30.0, 40.0), 1: ()}.items():
        lines = [json.dumps({"time": START + time, "event": f"e{time:.0f}"}) for time in times]
        Path(run.attempt.events(term)).write_text("".join(f"{line}\n" for line in lines))
    (attempt,) = RunReader(run.paths).read().attempts
    assert [(event.name, event.term) for event in attempt.events] == [("e10", 0), ("e20", 0), ("e30", 2), ("e40", 2)]


def test_an_attempt_began_with_its_job_script_or_else_with_its_first_event(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    Path(run.attempt.events()).write_text(json.dumps({"time": START + 9.0, "event": "note"}) + "\n")
    assert RunReader(run.paths).read().attempts[0].began == START + 9.0
    Path(run.attempt.canary).touch()
    os.utime(run.attempt.canary, (START + 5.0,) * 2)
    assert RunReader(run.paths).read().attempts[0].began == START + 5.0
    write_json(run.attempt.status(), {"timings": {"job_start": START + 4.0}})
    assert RunReader(run.paths).read().attempts[0].began == START + 4.0


def test_attempts_that_begin_later_are_read_in_order(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    reader = RunReader(run.paths)
    assert [attempt.number for attempt in reader.read().attempts] == [0]
    for number in (10, 2):
        os.mkdir(run.paths.attempt(number).root)
    assert [attempt.number for attempt in reader.read().attempts] == [0, 2, 10]


def test_a_run_without_any_file_was_requested_now(tmp_path: Path) -> None:
    record = RunReader(RunPaths(str(tmp_path / "nothing")), lambda: START).read()
    assert (record.asked, record.submitted, record.now, record.attempts, record.live) == (START, START, START, (), True)


def test_a_job_that_starts_at_once_was_submitted_no_later_than_it_began(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", 1)
    write_json(run.paths.submission, {"asked": START + 3.0, "time": START + 8.0})
    write_json(run.attempt.status(), {"timings": {"job_start": START + 5.0}})
    record = RunReader(run.paths).read()
    assert (record.asked, record.submitted) == (START + 3.0, START + 5.0)
