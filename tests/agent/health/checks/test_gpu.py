"""GPUs in the output of nvidia-smi. No GPU is present: the output is from public reports."""

from __future__ import annotations

from pathlib import Path

from muster.agent.health.checks import gpu
from muster.agent.health.checks.finding import CheckedNode, Verdict, failed

MIB = 1 << 20
REPORTED = (Path(__file__).parent / "tool_output" / "nvidia-smi-q-a100.txt").read_text()
HEALTHY = REPORTED.split("\nGPU 00000000:10")[0]
LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-31515c3d-1414-7c2c-004a-f86a898946ac)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-72d87681-01db-370e-567d-41afcf20fad0)
"""
LOST = "Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error"
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-8ba2f3b4-4e2f-5f3b-ae1f-1ff0a4a1ddd6)
  MIG 3g.20gb     Device  1: (UUID: MIG-ca1f5c1c-0ea3-5b8a-9d7a-c5b5b4ac0fcd)
"""


def node(text: str, argv: tuple[str, ...] = gpu.QUERY, **env: str) -> CheckedNode:
    """A node on which nvidia-smi prints this text."""
    return CheckedNode(env, "/tmp", "/tmp", {argv: (0, text)})


def test_a_node_has_all_gpus_that_slurm_has_allocated() -> None:
    checked = node(LISTING, gpu.LIST, SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="0,1")
    assert gpu.check_count(checked, None).verdict is Verdict.PASSED


def test_a_gpu_that_has_fallen_off_the_bus_is_missing() -> None:
    listing = LISTING.splitlines()[0] + "\n" + LOST + "\n"
    found = gpu.check_count(node(listing, gpu.LIST, SLURM_GPUS_ON_NODE="2"), None)
    assert found == failed(f"1 of 2 allocated GPUs are listed: {LOST}")


def test_more_gpus_than_allocated_and_none_allocated_are_no_failure() -> None:
    assert gpu.check_count(node(LISTING, gpu.LIST, SLURM_GPUS_ON_NODE="1"), None).verdict is Verdict.PASSED
    assert gpu.check_count(node(LOST, gpu.LIST), None).verdict is Verdict.SKIPPED


def test_of_two_counts_the_smaller_one_is_expected() -> None:
    """A step may be given fewer GPUs than the job has on the node."""
    assert gpu.allocated_gpus({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1"}) == 2


def test_instances_of_divided_gpus_are_counted_one_by_one() -> None:
    assert gpu.judge_count(DIVIDED, 2).verdict is Verdict.PASSED
    assert gpu.judge_count(DIVIDED, 3).verdict is Verdict.FAILED


def test_a_gpu_without_errors_passes_every_check() -> None:
    for check, threshold in ((gpu.check_ecc, 0.0), (gpu.check_clocks, None), (gpu.check_memory_in_use, 64 * MIB)):
        assert check(node(HEALTHY), threshold).verdict is Verdict.PASSED  # type: ignore[arg-type]


def test_a_row_that_waits_for_its_remapping_is_a_failure_and_corrected_errors_are_not() -> None:
    reason = "GPU 00000000:10:1C.0 needs a reset or repair of its memory (Pending: Yes)"
    assert gpu.check_ecc(node(REPORTED), 0.0) == failed(reason)


def test_uncorrected_errors_since_the_reset_count_and_those_of_the_gpu_s_life_do_not() -> None:
    volatile, aggregate = HEALTHY.split("        Aggregate\n", 1)
    parity = "SRAM Uncorrectable Parity     : "
    before = volatile + "        Aggregate\n" + aggregate.replace(parity + "0", parity + "7")
    since = volatile.replace(parity + "0", parity + "3") + "        Aggregate\n" + aggregate
    assert gpu.check_ecc(node(before), 0.0).verdict is Verdict.PASSED
    assert gpu.check_ecc(node(since), 0.0) == failed("GPU 00000000:68:00.0 has 3 uncorrected memory errors")
    assert gpu.check_ecc(node(since), 3.0).verdict is Verdict.PASSED


def test_a_slowdown_by_the_hardware_is_a_failure_and_idle_clocks_are_not() -> None:
    hot = HEALTHY.replace("HW Thermal Slowdown           : Not Active", "HW Thermal Slowdown           : Active")
    assert gpu.check_clocks(node(hot), None) == failed(
        "the hardware slows down GPU 00000000:68:00.0 (HW Thermal Slowdown)"
    )
    software = HEALTHY.replace(
        "SW Power Cap                      : Not Active", "SW Power Cap                      : Active"
    )
    assert gpu.check_clocks(node(software), None).verdict is Verdict.PASSED


def test_memory_that_another_program_uses_is_a_failure() -> None:
    used = HEALTHY.replace(
        "Used                              : 1 MiB", "Used                              : 40000 MiB", 1
    )
    found = gpu.check_memory_in_use(node(used), 2048 * MIB)
    assert found == failed("39.1 GiB of the memory of GPU 00000000:68:00.0 are in use by other programs")


def test_without_nvidia_smi_or_gpus_nothing_is_checked() -> None:
    absent = CheckedNode({"SLURM_GPUS_ON_NODE": "1"}, "/tmp", "/tmp", {gpu.LIST: None, gpu.QUERY: None})
    assert gpu.check_count(absent, None).verdict is Verdict.SKIPPED
    assert gpu.check_ecc(absent, 0.0).verdict is Verdict.SKIPPED
    assert gpu.check_ecc(node("NVIDIA-SMI has failed"), 0.0).verdict is Verdict.SKIPPED


def test_values_are_found_by_their_headings() -> None:
    (report,) = gpu.parse_query(HEALTHY).values()
    assert report["FB Memory Usage/Used"] == "1 MiB" and report["BAR1 Memory Usage/Used"] == "1 MiB"
    assert report["Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown"] == "Not Active"
