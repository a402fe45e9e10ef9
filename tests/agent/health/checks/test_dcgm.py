"""The table of `dcgmi diag` of a node with a GPU that has failed, written after its format."""

from __future__ import annotations

from muster.agent.health.checks.dcgm import DIAGNOSIS, check_diagnosis, judge_diagnosis
from muster.agent.health.checks.finding import CheckedNode, Verdict, failed

HEAD = """\
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Deployment  --------+------------------------------------------------|
"""
FAILED = (
    HEAD
    + """\
| Error                     | GPU 3 has uncorrectable memory errors and row  |
|                           |  remappings are pending                        |
"""
)
PASSED = (
    HEAD
    + """\
| Denylist                  | Pass                                           |
| NVML Library              | Pass                                           |
+---------------------------+------------------------------------------------+
"""
)


def test_an_error_over_two_lines_is_the_reason() -> None:
    assert judge_diagnosis(FAILED) == failed(
        "Error: GPU 3 has uncorrectable memory errors and row remappings are pending"
    )


def test_a_failed_test_is_a_failure_and_passed_ones_are_none() -> None:
    assert judge_diagnosis(PASSED).verdict is Verdict.PASSED
    assert judge_diagnosis(
        PASSED.replace("NVML Library              | Pass", "NVML Library              | Fail")
    ).reason == ("NVML Library: Fail")


def test_without_dcgm_or_its_daemon_nothing_is_checked() -> None:
    assert check_diagnosis(CheckedNode({}, "/tmp", "/tmp", {DIAGNOSIS: None}), None).verdict is Verdict.SKIPPED
    assert judge_diagnosis("Error: Unable to connect to host engine.\n").verdict is Verdict.SKIPPED
