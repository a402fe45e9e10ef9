"""Facts about Slurm, from the output of its commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doctor.slurm_answers import answer

from muster.doctor import slurm_facts
from muster.doctor.slurm_facts import SlurmCommandError, SlurmFacts, partitions_in, query_slurm, states_in


def test_slurms_answers_are_read() -> None:
    slurm = query_slurm(answer)
    assert (slurm.controller, slurm.pyxis, slurm.error) == ("23.11.4", True, "")
    assert slurm.node_states == {"gpu": {"idle": 10, "allocated": 2, "drained": 7, "idle*": 1}, "old": {"idle": 4}}


def test_a_controller_that_does_not_answer_is_a_fact_and_what_was_known_before_stays() -> None:
    def broken(argv: list[str]) -> str:
        if argv[0] == "scontrol":
            raise SlurmCommandError("scontrol: Unable to contact slurm controller (connect failure)")
        return answer(argv)

    error = "scontrol: Unable to contact slurm controller (connect failure)"
    assert query_slurm(broken) == SlurmFacts(client="slurm 23.11.4", pyxis=True, error=error)


def test_of_a_partition_only_the_keys_that_checks_need_are_kept() -> None:
    text = "PartitionName=gpu AllowGroups=ALL State=UP MaxTime=1-00:00:00\nNothing=1\n"
    assert partitions_in(text) == [{"PartitionName": "gpu", "State": "UP", "MaxTime": "1-00:00:00"}]


def test_equal_states_of_a_partition_are_summed() -> None:
    assert states_in("gpu|idle|10\ngpu|idle|2\ncpu|down*|1\n") == {"gpu": {"idle": 12}, "cpu": {"down*": 1}}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("echo first >&2; echo 'slurm_load: timeout' >&2; exit 1", "sinfo: slurm_load: timeout"),
        ("echo 'on stdout'; exit 1", "sinfo: on stdout"),
        ("exit 3", "sinfo: ended with code 3"),
        ("exec sleep 1000", "sinfo did not answer within 0.5 s"),
        (None, "sinfo could not be run: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_named_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, error: str
) -> None:
    if body is not None:
        (tmp_path / "sinfo").write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if body is not None else str(tmp_path))
    if body and "sleep" in body:
        monkeypatch.setattr(slurm_facts, "COMMAND_TIMEOUT_S", 0.5)
    assert query_slurm().error == error
