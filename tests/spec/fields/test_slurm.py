"""Fields for sbatch options and requeues: accepted and refused values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from muster.agent.guardian import FORWARDED_SIGNALS
from muster.errors import SpecError
from muster.spec import JobSpec, validators
from muster.spec.fields.slurm import RequeueFields, SlurmFields
from muster.spec.flags import flags_of


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


@pytest.mark.parametrize("value", ["USR2@120", "sigusr1@60", "HUP@5", "10@90", "R:USR1@120"])
def test_a_signal_that_the_agents_forward_is_kept_as_written(value: str) -> None:
    assert JobSpec(command=["x"], signal=value).sbatch_requests()["signal"] == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("TERM@60", "SIGTERM ends the run"),
        ("SIGINT@60", "SIGINT ends the run"),
        ("9@60", "SIGKILL kills all processes at once"),
        ("CONT@60", "is sent by Slurm before every SIGTERM"),
        ("TTOU@60", "is not forwarded to the driver; signals that are: HUP, QUIT, USR1, USR2, ALRM, URG"),
        ("99@60", "is not forwarded"),
        ("B:USR2@60", "only the batch script, not the driver"),
        ("USR2", "is not a signal with a time"),
    ],
)
def test_other_signals_are_refused_with_the_reason(value: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        JobSpec(command=["x"], signal=value)


def test_the_accepted_signals_are_those_that_agents_forward() -> None:
    assert {f"SIG{name}" for name in validators.FORWARDED_SIGNALS} == {signum.name for signum in FORWARDED_SIGNALS}


def test_reasons_to_requeue_are_a_list_or_text_with_commas() -> None:
    causes = ["timeout", "preempt", "node-fail", "exit=75"]
    assert JobSpec(command=["x"], requeue_on=",".join(causes)).requeue_on == causes
    assert JobSpec(command=["x"], requeue_on=causes).requeue_on == causes


@pytest.mark.parametrize(
    ("value", "why"),
    [("exit=0", "1 to 255"), ("exit=256", "1 to 255"), ("always", "is not a reason"), ("exit=", "is not a reason")],
)
def test_other_reasons_to_requeue_are_refused(value: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        JobSpec(command=["x"], requeue_on=value)


@pytest.mark.parametrize("limit", ["30", "10:00", "1:30:00", "2-12", "2-12:30", "2-12:30:59", "UNLIMITED", "infinite"])
def test_time_limits_are_kept_as_slurm_spells_them(limit: str) -> None:
    assert job(time=limit).time == limit


def test_a_bare_number_is_minutes_of_time_and_megabytes_of_memory() -> None:
    assert job(time=90).time == "90"
    assert job(mem=4096).mem == "4096"


@pytest.mark.parametrize("limit", ["1h", "1:2:3:4", "2-", "-5", "", "1:30:00\n", "soon", True, 1.5])
def test_a_time_limit_that_slurm_would_refuse_is_refused(limit: Any) -> None:
    with pytest.raises(SpecError):
        job(time=limit)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(True, True), ("true", True), ("False", False), ("user", "user"), ("MCS", "mcs"), (None, None)],
)
def test_exclusive_is_on_off_or_a_mode(given: Any, kept: Any) -> None:
    assert job(exclusive=given).exclusive == kept


def test_no_sbatch_option_is_set_by_default() -> None:
    assert SlurmFields().model_dump(exclude_none=True) == {"sbatch": {}}


def test_every_flag_of_an_sbatch_option_is_in_the_slurm_group() -> None:
    assert {flag.group for flag in flags_of(SlurmFields).values()} == {"Slurm"}
    assert {flag.group for flag in flags_of(RequeueFields).values()} == {"Restarts"}


def test_memory_is_kept_as_slurm_spells_it() -> None:
    assert [job(mem=size).mem for size in ("512M", "64G", "1T", "0")] == ["512M", "64G", "1T", "0"]


def test_a_run_has_one_job_and_no_reason_to_requeue_unless_asked() -> None:
    fields = RequeueFields()
    assert (fields.requeue_on, fields.max_requeues, fields.chain) == ([], 3, 1)
    assert RequeueFields.model_validate({"requeue_on": None}).requeue_on == []
    with pytest.raises(ValidationError):
        RequeueFields.model_validate({"chain": 0})
