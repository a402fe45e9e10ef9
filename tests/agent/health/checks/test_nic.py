"""Network ports, in the texts of sysfs."""

from __future__ import annotations

from muster.agent.health.checks.finding import CheckedNode, Verdict, failed
from muster.agent.health.checks.nic import Port, check_ports, judge_interfaces, judge_ports

GOOD = Port("mlx5_0/1", "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)")
INIT = Port("mlx5_1/1", "2: INIT", "5: LinkUp", "400 Gb/sec (4X NDR)")
UNUSED = Port("mlx5_2/1", "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)")
SLOW = Port("mlx5_3/1", "4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)")


def test_a_port_with_a_link_must_be_active_and_one_without_may_be_unused() -> None:
    assert judge_ports([GOOD, UNUSED], 0.0).verdict is Verdict.PASSED
    assert judge_ports([GOOD, INIT], 0.0) == failed("mlx5_1/1 has a link but is INIT")


def test_a_port_that_is_slower_than_the_threshold_fails() -> None:
    assert judge_ports([GOOD, SLOW], 0.0).verdict is Verdict.PASSED
    assert judge_ports([GOOD, SLOW], 400.0) == failed("mlx5_3/1 runs at 100 Gb/sec (4X EDR), less than 400 Gb/s")
    assert judge_ports([UNUSED], 400.0) == failed("none of 1 InfiniBand ports has a link")


def test_without_infiniband_the_fastest_device_is_compared_with_the_threshold() -> None:
    assert judge_interfaces(["1000", "25000", "-1", ""], 25.0).verdict is Verdict.PASSED
    assert judge_interfaces(["1000"], 25.0) == failed("the fastest network device runs at 1 Gb/s, less than 25 Gb/s")
    assert judge_interfaces(["-1", ""], 25.0).verdict is Verdict.SKIPPED
    assert judge_interfaces(["1000"], 0.0).verdict is Verdict.SKIPPED


def test_this_machine_has_no_failed_port() -> None:
    assert check_ports(CheckedNode({}, "/tmp", "/tmp"), 0.0).verdict is not Verdict.FAILED
