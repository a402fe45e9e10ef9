"""The fields that select built-in checks."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import SpecError
from muster.spec.model import JobSpec


def changes(**fields: Any) -> dict[str, bool | float]:
    return JobSpec(command=["true"], **fields).node_check


def test_checks_are_basic_unless_the_job_says_otherwise() -> None:
    assert JobSpec(command=["true"]).node_checks == "basic"
    assert changes() == {}


def test_a_flag_and_a_job_file_give_the_same_changes() -> None:
    flags = {"gpu-ecc": "2", "disk": "10G", "memory": "off", "clock": "on"}
    file = {"gpu-ecc": 2, "disk": 10 << 30, "memory": False, "clock": True}
    assert changes(node_check=flags) == changes(node_check=file) == {**file, "gpu-ecc": 2.0, "disk": float(10 << 30)}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gpu", "on", "has no check 'gpu'"),
        ("gpu-xid", "3", "gpu-xid has no threshold"),
        ("disk", "much", "disk=much is neither on, off nor a threshold"),
        ("cpu-speed", "7", "cpu-speed=7 is out of range"),
        ("clock", "-1", "clock=-1 is out of range"),
        ("clock", "nan", "clock=nan is out of range"),
    ],
)
def test_what_is_no_check_or_threshold_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        changes(node_check={name: value})
