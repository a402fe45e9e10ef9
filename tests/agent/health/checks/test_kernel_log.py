"""Xid messages in the kernel log, in the forms that the driver's releases write."""

from __future__ import annotations

from muster.agent.health.checks.finding import CheckedNode, Verdict, failed
from muster.agent.health.checks.kernel_log import check_xids, judge_log

LOST = "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus.\n"
REMAPPED = (
    "[12340.000001] NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, "
    "reset gpu to activate.\n"
)
PROGRAM = "[12300.100000] NVRM: Xid (PCI:0000:01:00): 31, pid=2096908, name=python, Ch 00000010, MMU Fault\n"


def test_an_xid_of_damaged_hardware_is_a_failure() -> None:
    assert judge_log(PROGRAM + LOST, 12400.0) == failed("GPU 0000:3b:00: Xid 79, the GPU has fallen off the bus")


def test_errors_of_programs_and_those_that_the_gpu_has_contained_are_none() -> None:
    assert judge_log(PROGRAM + REMAPPED, 12400.0).verdict is Verdict.PASSED


def test_old_xids_do_not_count() -> None:
    assert judge_log(LOST, 12345.7 + 3601.0).verdict is Verdict.PASSED


def test_a_log_that_may_not_be_read_is_skipped() -> None:
    refused = "dmesg: read kernel buffer failed: Operation not permitted\n"
    assert check_xids(CheckedNode({}, "/tmp", "/tmp", {("dmesg",): (1, refused)}), None).verdict is Verdict.SKIPPED
