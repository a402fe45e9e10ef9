"""Paths in a run directory, and the newest attempt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.rundir import AttemptPaths, RunPaths


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    root = tmp_path / "train-20260101T000000-ab12"
    root.mkdir()
    return RunPaths(str(root))


def test_the_run_id_is_the_name_of_its_directory(run: RunPaths) -> None:
    assert run.run_id == "train-20260101T000000-ab12"


def test_before_the_first_attempt_there_is_none(run: RunPaths) -> None:
    assert run.newest_attempt() is None
    assert RunPaths("/no/such/run").newest_attempt() is None


def test_the_newest_attempt_has_the_highest_number_not_the_last_name(run: RunPaths) -> None:
    for number in (9, 10, 2):
        os.mkdir(run.attempt(number).root)
    assert run.newest_attempt() == run.attempt(10)


def test_only_directories_named_like_an_attempt_count(run: RunPaths) -> None:
    for name in ("attempt-1", "attempt-7.old", "attempt-x", "my-attempt-8", "attempt-"):
        os.mkdir(os.path.join(run.root, name))
    assert run.newest_attempt() == run.attempt(1)


@pytest.mark.parametrize("number", [0, 9, 10, 123])
def test_an_attempt_knows_its_number_whatever_the_run_is_called(number: int) -> None:
    assert RunPaths("/runs/attempt-5-of-7").attempt(number).number == number


def test_ranks_and_terms_are_part_of_the_names(run: RunPaths) -> None:
    attempt = AttemptPaths("/runs/r/attempt-0")
    assert attempt.node_record(3) == "/runs/r/attempt-0/nodes/0003.json"
    assert attempt.node_log(12345) == "/runs/r/attempt-0/logs/node-12345.log"
    assert attempt.leader() == "/runs/r/attempt-0/lead-0.json"
    assert attempt.status(2) == "/runs/r/attempt-0/status-2.json"
    assert attempt.events(2) == "/runs/r/attempt-0/events-2.jsonl"


def test_no_two_things_lie_in_the_same_place(run: RunPaths) -> None:
    attempt = run.attempt(0)
    places = [getattr(run, name) for name, value in vars(RunPaths).items() if isinstance(value, property)]
    places += [getattr(attempt, name) for name, value in vars(AttemptPaths).items() if isinstance(value, property)]
    places += [attempt.leader(), attempt.status(), attempt.events(), attempt.node_record(0), attempt.node_log(0)]
    assert len(places) == len(set(places))


def test_results_lie_outside_any_attempt(run: RunPaths) -> None:
    assert os.path.dirname(run.output_dir) == run.root


def test_the_first_cycle_s_directory_of_ranks_does_not_make_its_ray_logs_count_twice(run: RunPaths) -> None:
    attempt = run.attempt(0)
    for cycle in (0, 2):
        os.makedirs(os.path.dirname(attempt.rank_log(0, cycle)))
    assert attempt.ray_logs_dirs() == [attempt.ray_logs_dir(0), attempt.ray_logs_dir(2)]


def test_a_rank_s_logs_are_those_of_the_cycles_it_was_in(run: RunPaths) -> None:
    attempt = run.attempt(0)
    assert attempt.rank_logs(3) == []
    for node_index, cycle in ((3, 10), (3, 2), (4, 11)):
        os.makedirs(os.path.dirname(attempt.rank_log(node_index, cycle)))
        Path(attempt.rank_log(node_index, cycle)).touch()
    assert attempt.rank_logs(3) == [attempt.rank_log(3, 2), attempt.rank_log(3, 10)]


def test_attempts_and_terms_are_listed_in_the_order_of_their_numbers(run: RunPaths) -> None:
    for number in (10, 9):
        os.mkdir(run.attempt(number).root)
    assert run.attempts() == [run.attempt(9), run.attempt(10)]
    attempt = run.attempt(9)
    for term in (10, 2):
        Path(attempt.events(term)).touch()
        Path(attempt.status(term + 1)).touch()
        Path(attempt.leader(term + 2)).touch()
    assert (attempt.event_terms(), attempt.terms(), attempt.claims()) == ([2, 10], [3, 11], [4, 12])
    assert run.attempt(3).event_terms() == run.attempt(3).terms() == RunPaths("/no/such/run").attempts() == []
