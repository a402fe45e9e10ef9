"""NVLinks in output of nvidia-smi that is written after its format."""

from __future__ import annotations

from pathlib import Path

from muster.agent.health.checks.finding import CheckedNode, Verdict, failed
from muster.agent.health.checks.nvlink import STATUS, check_links, judge_links

REPORTED = (Path(__file__).parent / "tool_output" / "nvlink-h200.txt").read_text()


def test_gpus_with_the_same_number_of_active_links_pass() -> None:
    node = CheckedNode({}, "/tmp", "/tmp", {STATUS: (0, REPORTED)})
    assert check_links(node, None).verdict is Verdict.PASSED
    assert check_links(CheckedNode({}, "/tmp", "/tmp", {STATUS: None}), None).verdict is Verdict.SKIPPED


def test_a_gpu_with_fewer_active_links_than_another_one_fails() -> None:
    broken = REPORTED.replace("Link 4: 26.562 GB/s", "Link 4: <inactive>", 1)
    assert judge_links(broken) == failed("GPU 0 has 17 active NVLinks, others 18")


def test_links_that_no_gpu_uses_and_nodes_without_links_are_no_failure() -> None:
    bridge = REPORTED.replace("Link 4: 26.562 GB/s", "Link 4: <inactive>")
    assert judge_links(bridge).verdict is Verdict.PASSED
    assert judge_links(REPORTED.replace("26.562 GB/s", "<inactive>")).verdict is Verdict.SKIPPED
    assert judge_links("GPU 0: NVIDIA L4 (UUID: GPU-x)\n").verdict is Verdict.SKIPPED
