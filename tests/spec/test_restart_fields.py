"""Signals before the time limit, and reasons to requeue: accepted and refused values."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from muster.agent.main import FORWARDED_SIGNALS
from muster.spec import JobSpec, validators


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
    with pytest.raises(ValidationError, match=why):
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
    with pytest.raises(ValidationError, match=why):
        JobSpec(command=["x"], requeue_on=value)
