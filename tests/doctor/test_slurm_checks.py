"""Slurm and its partitions, judged by the facts about them."""

from __future__ import annotations

import math

import pytest
from tests.doctor.slurm_answers import answer

from muster.doctor.slurm_checks import check_partition, check_slurm, minutes
from muster.doctor.slurm_facts import SlurmFacts, query_slurm


@pytest.fixture
def slurm() -> SlurmFacts:
    return query_slurm(answer)


def test_a_slurm_that_answers_passes(slurm: SlurmFacts) -> None:
    assert check_slurm(slurm).state == "pass"


@pytest.mark.parametrize(
    ("partition", "nodes", "time", "state", "told"),
    [
        (None, 4, None, "pass", "gpu: up, 12 of 20 nodes usable (2 allocated, 7 drained, 10 idle, 1 idle*)"),
        (None, 4, None, "pass", "01:00:00 without --time"),
        ("gpu", 4, "24:00:00", "pass", "time limit 1-00:00:00"),
        ("gpu", 4, "1-00:00:01", "fail", "the time limit is 1-00:00:00, --time is 1-00:00:01"),
        ("gpu", 4, "UNLIMITED", "fail", "the time limit is"),
        ("gpu", 14, None, "warn", "14 are requested"),
        ("gpu", 17, None, "fail", "a job may have 16 nodes"),
        ("gpu", 21, None, "fail", "has 20 nodes, 21 are requested"),
        ("gpu", 1, None, "fail", "a job must have 2 nodes"),
        ("old", 1, None, "fail", "its state is DRAIN"),
        ("nope", 1, None, "fail", "there is no such partition"),
        ("old,gpu", 4, None, "pass", "gpu: up"),
    ],
)
def test_the_partition(
    slurm: SlurmFacts, partition: str | None, nodes: int, time: str | None, state: str, told: str
) -> None:
    verdict = check_partition(slurm, partition, nodes, time)
    assert verdict.state == state
    assert told in verdict.what
    assert bool(verdict.advice) == (state != "pass")


def test_an_unknown_partition_is_answered_with_those_there_are(slurm: SlurmFacts) -> None:
    assert check_partition(slurm, "nope", 1, None).advice == "choose one: -p gpu, old"


def test_a_slurm_that_does_not_answer_fails_and_the_partition_is_skipped() -> None:
    slurm = SlurmFacts(error="scontrol: Unable to contact slurm controller (connect failure)")
    verdict = check_slurm(slurm)
    assert verdict.state == "fail" and "Unable to contact" in verdict.what and "scontrol ping" in verdict.advice
    assert check_partition(slurm, None, 1, None).state == "skip"


def test_a_slurm_whose_srun_cannot_overlap_fails() -> None:
    assert check_slurm(SlurmFacts("slurm 20.02.6", "20.02.6")).state == "fail"
    assert check_slurm(SlurmFacts("slurm 20.11.9", "20.11.9")).state == "pass"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("30:30", 30.5), ("1:30:00", 90), ("2-12", 3600), ("1-00:30", 1470), ("1-00:00:30", 1440.5)],
)
def test_time_limits_in_all_of_slurms_forms(text: str, expected: float) -> None:
    assert minutes(text) == expected
    assert minutes("UNLIMITED") == math.inf
