"""The timeline of a run: spans that add up, whatever the run directory looks like."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.views.synthetic import START, SyntheticRun, large_run
from tests.views.timelines import adds_up, phases, seen_of

from muster.rundir import RunPaths, write_json
from muster.rundir.records import Submission
from muster.views import timeline as timeline_module
from muster.views.phases import Phase
from muster.views.record import AttemptRecord, RecordedEvent, RunReader, RunRecord
from muster.views.timeline import TimelineBuilder, build_timeline


def test_a_node_goes_through_its_phases_and_they_sum_to_the_wall_time(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=4)
    run.brings_up(slow=2)
    run.ends()
    seen = seen_of(run.paths)
    (attempt,) = seen.attempts
    assert phases(attempt.nodes[2]) == [
        "submitted",
        "pending",
        "launching",
        "arrived",
        "starting",
        "joined",
        "driver",
        "finishing",
        "gone",
    ]
    assert seen.start == START and seen.wall == pytest.approx(run.now - START)
    assert attempt.nodes[2].seconds(Phase.PENDING) == 29.0
    assert attempt.nodes[2].seconds(Phase.DRIVER) == pytest.approx(90.0)


def test_a_cycle_that_the_status_does_not_list_any_more_has_its_reason_from_the_events(tmp_path: Path) -> None:
    run = large_run(tmp_path / "r", nodes=24)
    del run.cycles[:-1]
    run.write("succeeded", cycles_dropped=2)
    (attempt,) = seen_of(run.paths).attempts
    assert [cycle.number for cycle in attempt.cycles] == [0, 1, 2]
    assert "gpu0017 is gone" in attempt.cycles[0].reason


def test_of_three_cycles_each_has_its_path_and_its_end_in_words(tmp_path: Path) -> None:
    run = large_run(tmp_path / "r", nodes=24)
    (attempt,) = seen_of(run.paths).attempts
    assert [cycle.number for cycle in attempt.cycles] == [0, 1, 2]
    assert "gpu0017 is gone" in attempt.cycles[0].reason
    assert attempt.cycles[1].path[0].what == "the previous driver is stopped"
    assert attempt.cycles[2].path[-2].what == "Ray starts on gpu0001"
    assert [(mark.kind, mark.node_index) for mark in attempt.marks if mark.kind == "lost"] == [
        ("lost", 17),
        ("lost", 18),
    ]
    assert phases(attempt.nodes[17])[-1] == "lost" and attempt.nodes[17].role == "excluded"
    assert {"spare", "driver"} <= set(phases(attempt.nodes[20]))  # a spare that stood in


def test_a_run_in_the_queue_is_pending_until_now(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    os.rename(run.attempt.root, tmp_path / "elsewhere")
    seen = seen_of(run.paths, START + 50.0)
    assert [phases(node) for node in seen.attempts[0].nodes] == [["submitted", "pending"]] * 2
    assert seen.wall == 50.0


def test_a_live_run_ends_now_and_its_path_leads_to_what_it_waits_for(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=3)
    run.tell("run", state="gathering")
    run.node(0, "arrived", 1.0)
    run.node(0, "starting")
    run.node(2, "arrived", 1.0)
    run.write("gathering")
    (attempt,) = seen_of(run.paths, START + 100.0).attempts
    assert [phases(node)[-1] for node in attempt.nodes] == ["starting", "launching", "arrived"]
    assert attempt.cycles[0].path[-1].end == START + 100.0


def test_a_requeued_run_waits_in_the_queue_again(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.ends(code=3)
    write_json(run.attempt.next_attempt, {"again": "requeue", "cause": "exit=3", "note": ""})
    seen = seen_of(run.paths, START + 500.0)
    assert [attempt.number for attempt in seen.attempts] == [0, 1]
    assert phases(seen.attempts[1].nodes[0]) == ["pending"]
    second = run.paths.attempt(1)
    os.makedirs(second.root)
    event = {"time": START + 420.0, "event": "run", "state": "gathering", "cycle": 0}
    Path(second.events()).write_text(json.dumps(event) + "\n")
    write_json(second.status(), {"state": "gathering", "timings": {"job_start": START + 400.0}})
    seen = seen_of(run.paths, START + 500.0)
    assert [phases(node) for node in seen.attempts[1].nodes] == [["pending", "launching"]] * 2
    assert seen.wall == 500.0


# -- broken ---------------------------------------------------------------------------------------------------------


def test_a_step_that_never_had_a_leader_is_launching_to_the_end(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    Path(run.attempt.root, "canary").write_text("r 0\n")
    os.utime(Path(run.attempt.root, "canary"), (START + 5.0,) * 2)
    write_json(run.attempt.outcome, {"exit_code": 125, "end_reason": "no container"})
    os.utime(run.attempt.outcome, (START + 9.0,) * 2)
    seen = seen_of(run.paths)
    assert phases(seen.attempts[0].nodes[1]) == ["submitted", "pending", "launching"]
    assert seen.wall == 9.0


def test_a_job_with_a_range_of_nodes_has_as_many_as_slurm_has_allocated(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=4)
    job = json.loads(Path(run.paths.job).read_text())
    write_json(run.paths.job, {**job, "nodes": 4, "min_nodes": 2})
    Path(run.attempt.root, "canary").write_text("r 0\n")
    Path(run.attempt.hosts).write_text("n0\nn1\nn2\n")
    assert len(seen_of(run.paths).attempts[0].nodes) == 3


def test_an_empty_directory_has_a_timeline_too(tmp_path: Path) -> None:
    seen = seen_of(RunPaths(str(tmp_path / "nothing")))
    assert seen.wall == 0.0 and seen.attempts[0].nodes == ()


def test_clocks_that_disagree_shorten_phases_but_never_below_nothing(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2)
    run.brings_up()
    run.ends()
    # The login node is an hour ahead.
    write_json(run.paths.submission, {"asked": START + 4000.0, "time": START + 4001.0})
    seen = seen_of(run.paths)
    assert seen.start == START + 30.0


# -- terms ----------------------------------------------------------------------------------------------------------


def test_the_events_of_all_terms_count_in_order_and_nothing_of_a_fenced_leader(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "r", nodes=2, spares=1)
    run.brings_up()
    first, run.lines = [*run.lines], []
    fenced = json.dumps({"time": run.now + 900.0, "event": "driver_end", "cycle": 0, "exit_code": 0})
    run.cycle, run.now, run.nodes, run.spares = 1, run.now + 60.0, 2, 0
    run.tell("run", state="gathering")
    for node_index in (1, 2):
        run.node(node_index, "arrived", 1.0, role="active")
    run.tell("run", state="starting")
    for node_index in (1, 2):
        run.node(node_index, "ready", 1.0)
    run.tell("run", state="running")
    run.tell("driver_start", 0.1)
    Path(run.attempt.events(1)).write_text("".join(f"{line}\n" for line in run.lines))
    Path(run.attempt.events(0)).write_text("".join(f"{line}\n" for line in [*first, fenced]))
    nodes = [{"rank": 0, "host": "gpu0000", "role": "excluded", "state": "lost"}]
    timings = {"job_start": START + 30.0}
    write_json(run.attempt.status(1), {"state": "running", "nodes": nodes, "timings": timings, "updated": run.now})
    (attempt,) = seen_of(run.paths, run.now + 10.0).attempts
    assert [phases(node)[-1] for node in attempt.nodes] == ["lost", "driver", "driver"]
    assert [mark.kind for mark in attempt.marks] == ["driver_start", "lead", "cycle", "driver_start"]
    assert attempt.cycles[1].driver_start is not None


# -- anything -------------------------------------------------------------------------------------------------------

NAMES = ["node", "run", "driver_start", "driver_end", "end", "failure", "again", "service"]
STATES = ["expected", "arrived", "starting", "ready", "stopping", "gone", "failed", "lost"]
STATES += ["running", "restarting", "finishing"]
JOB = {"nodes": 3, "services": {"web": {"scope": "all"}, "judge": {"scope": 1}, "x": {"gate": False}}}
HAPPENINGS = st.builds(
    RecordedEvent,
    time=st.floats(START, START + 100),
    name=st.sampled_from(NAMES),
    cycle=st.integers(0, 3),
    term=st.integers(0, 2),
    fields=st.fixed_dictionaries(
        {
            "state": st.sampled_from(STATES),
            "rank": st.integers(0, 4),
            "role": st.sampled_from(["active", "spare", "x"]),
            "logical_rank": st.sampled_from([None, 0, 1, 2]),
            "service": st.sampled_from(["web", "judge", "x"]),
        }
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(HAPPENINGS, max_size=40), st.floats(START - 50, START + 150), st.booleans())
def test_whatever_the_events_say_the_spans_add_up(events: list[RecordedEvent], began: float, over: bool) -> None:
    ordered = tuple(sorted(events, key=lambda event: event.time))
    ended = max([began, *(event.time for event in events)]) if over else None
    attempt = AttemptRecord(0, ordered, {}, {}, (), began, ended)
    state = {"state": "failed" if over else "running"}
    record = RunRecord("r", "/r", state, JOB, Submission(), (attempt,), began - 2, began - 1, START + 200)
    adds_up(build_timeline(record))


@settings(max_examples=300, deadline=None)
@given(st.lists(HAPPENINGS, max_size=40), st.lists(st.integers(0, 40), max_size=4), st.booleans())
def test_a_timeline_that_grows_equals_one_that_is_built_at_once(
    events: list[RecordedEvent], reads: list[int], dropped: bool
) -> None:
    """At each read some more events are there, and nodes may be excluded; a new leader may have dropped the last."""
    ordered = sorted(events, key=lambda event: (event.term, event.time))
    growing = TimelineBuilder()
    for count in [*sorted(reads), len(ordered)]:
        seen = ordered[:count]
        if dropped and count == len(ordered):
            del seen[len(seen) // 2 : len(seen) // 2 + 3]
        status = {"nodes": [{"rank": 1, "host": "n1", "state": "lost", "role": "excluded" if count % 2 else "active"}]}
        attempt = AttemptRecord(0, tuple(seen), status, {}, ("n0", "n1", "n2"), START - 1)
        times = (START - 3, START - 2, START + 200 + count)
        record = RunRecord("r", "/r", {"state": "running"}, JOB, Submission(), (attempt,), *times)
        assert growing.build(record) == build_timeline(record)


def test_a_later_build_processes_only_new_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`muster top` builds a timeline twice a second: with 2,000 nodes it had a core to itself."""
    run = SyntheticRun(tmp_path / "r", nodes=40)
    run.brings_up()
    run.write("running")
    reader, growing, handled = RunReader(run.paths), TimelineBuilder(), []
    handle = timeline_module._AttemptBuilder._handle
    count = lambda self, event: (handled.append(event), handle(self, event))  # noqa: E731
    monkeypatch.setattr(timeline_module._AttemptBuilder, "_handle", count)
    growing.build(reader.read())
    assert len(handled) == len(run.lines)
    handled.clear()
    run.tell("note", 1.0, text="something new")
    run.write("running")
    growing.build(reader.read())
    assert len(handled) == 1
