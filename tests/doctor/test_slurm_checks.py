"""What Slurm answers, read and judged."""

from __future__ import annotations

import math

import pytest

from muster.doctor.slurm_checks import check_partition, check_slurm, minutes
from muster.doctor.slurm_facts import SlurmCommandError, SlurmFacts, query_slurm

ANSWERS = {
    "sinfo --version": "slurm 23.11.4\n",
    "srun --help": "Usage: srun ...\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n",
    "scontrol show config": "Configuration data\nSLURM_CONF   = /etc/slurm.conf\nSLURM_VERSION           = 23.11.4\n",
    "scontrol --oneliner show partition": (
        "PartitionName=gpu AllowGroups=ALL Default=YES DefaultTime=01:00:00 MaxNodes=16 MaxTime=1-00:00:00 MinNodes=2"
        " State=UP TotalNodes=20\n"
        "PartitionName=old Default=NO DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 State=DRAIN"
        " TotalNodes=4\n"
    ),
    "sinfo --noheader --format=%R|%T|%D": "gpu|idle|10\ngpu|allocated|2\ngpu|drained|7\ngpu|idle*|1\nold|idle|4\n",
}


def ask(argv: list[str]) -> str:
    return ANSWERS[" ".join(argv)]


@pytest.fixture
def slurm() -> SlurmFacts:
    return query_slurm(ask)


def test_slurms_answers_are_read(slurm: SlurmFacts) -> None:
    assert (slurm.controller, slurm.pyxis, slurm.error) == ("23.11.4", True, "")
    assert slurm.node_states == {"gpu": {"idle": 10, "allocated": 2, "drained": 7, "idle*": 1}, "old": {"idle": 4}}
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
    def broken(argv: list[str]) -> str:
        if argv[0] == "scontrol":
            raise SlurmCommandError("scontrol: Unable to contact slurm controller (connect failure)")
        return ask(argv)

    slurm = query_slurm(broken)
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
