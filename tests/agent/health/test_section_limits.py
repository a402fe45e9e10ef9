"""Learned limits: no alarm for usual variations, one for a process that stays far beyond them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from muster.agent.health.section_limits import MIN_SAMPLES, SAFETY_FACTOR, SectionTimes, learned_limit
from muster.sections import STEP


def record(pid: int = 7, **fields: Any) -> dict[str, Any]:
    return {"pid": pid, "rank": None, "step": None, "beat": None, "open": [], "durations": {}, **fields}


def opened(name: str, since: float, timeout: float | None = None) -> dict[str, Any]:
    return {"name": name, "since": since, "timeout": timeout}


@pytest.mark.parametrize("seed", range(20))
def test_times_that_vary_by_a_factor_of_three_never_reach_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    samples: list[float] = []
    for _ in range(500):
        seconds = chance.choice((1.0, 3.0)) if seed % 2 else chance.uniform(1.0, 3.0)
        limit = learned_limit(samples, 0.0)
        assert limit is None or seconds < limit
        samples.append(seconds)


def test_a_constant_time_is_exceeded_at_the_safety_factor_but_not_below_the_minimum() -> None:
    samples = [2.0] * MIN_SAMPLES
    assert learned_limit(samples, 0.0) == SAFETY_FACTOR * 2.0
    assert learned_limit(samples, 300.0) == 300.0


def test_too_few_samples_give_no_limit() -> None:
    assert learned_limit([1.0] * (MIN_SAMPLES - 1), 0.0) is None
    (found,) = SectionTimes(0.0, {}).assess([record(open=[opened("x", 0.0)])], 1e9)
    assert (found.section, found.limit, found.overdue) == ("x", None, False)


def test_a_given_timeout_counts_instead_of_the_learned_limit() -> None:
    times = SectionTimes(0.0, {"x": [1.0] * MIN_SAMPLES})
    found = times.assess([record(open=[opened("x", 0.0, 30.0)]), record(8, open=[opened("x", 0.0)])], 20.0)
    assert [(one.limit, one.given, one.overdue) for one in found] == [(30.0, True, False), (5.0, False, True)]


def test_samples_of_all_processes_of_the_node_and_of_earlier_cycles_count() -> None:
    times = SectionTimes(0.0, {"x": [1.0] * 4})
    records = [record(pid, durations={"x": [1.0] * 3}) for pid in (7, 8)]
    (found, _) = times.assess([record(7, open=[opened("x", 0.0)], durations={"x": [1.0] * 3}), records[1]], 6.0)
    assert found.overdue and times.samples(records)["x"] == [1.0] * 10


def test_of_nested_sections_the_one_nearest_to_its_limit_is_named() -> None:
    outer, inner = opened("epoch", 0.0, 100.0), opened("checkpoint", 50.0, 10.0)
    (found,) = SectionTimes(0.0, {}).assess([record(open=[outer, inner])], 55.0)
    assert found.section == "checkpoint"
    (found,) = SectionTimes(0.0, {}).assess([record(open=[outer, opened("other", 50.0)])], 101.0)
    assert (found.section, found.overdue) == ("epoch", True)


def test_a_step_counts_only_while_no_section_is_open() -> None:
    times = SectionTimes(0.0, {STEP: [1.0] * MIN_SAMPLES})
    (found,) = times.assess([record(step=4, beat=0.0, open=[opened("checkpoint", 1.0)])], 100.0)
    assert not found.overdue
    (found,) = times.assess([record(rank="2", step=4, beat=0.0)], 100.0)
    assert (found.section, found.rank, found.step, found.overdue) == (STEP, 2, 4, True)


def test_a_process_in_no_section_is_never_overdue() -> None:
    (found,) = SectionTimes(0.0, {}).assess([record()], 100.0)
    assert (found.section, found.overdue) == (None, False)
