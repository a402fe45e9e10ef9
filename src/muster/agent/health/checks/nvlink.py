"""NVLinks of the node's GPUs, from the output of nvidia-smi."""

from __future__ import annotations

import re

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped
from muster.agent.health.checks.gpu import NO_PROGRAM

STATUS = ("nvidia-smi", "nvlink", "-s")
_GPU, _LINK = re.compile(r"^GPU (\d+):"), re.compile(r"^\s+Link \d+: (.+)$")


def check_links(node: CheckedNode, threshold: float | None) -> Finding:
    done = node.output(*STATUS)
    return skipped(NO_PROGRAM) if done is None else judge_links(done[1])


def judge_links(status: str) -> Finding:
    """Compare the numbers of active links: GPUs without a bridge between them have inactive ones, too."""
    active: dict[str, int] = {}
    gpu = ""
    for line in status.splitlines():
        if header := _GPU.match(line):
            gpu = header[1]
        elif (link := _LINK.match(line)) and gpu:
            active[gpu] = active.get(gpu, 0) + link[1].strip().endswith("GB/s")
    most = max(active.values(), default=0)
    if len(active) < 2 or not most:
        return skipped("no two GPUs with NVLinks")
    fewer = [f"GPU {gpu} has {count} active NVLinks, others {most}" for gpu, count in active.items() if count < most]
    return failed("; ".join(fewer)) if fewer else passed(f"{most} links of each of {len(active)} GPUs")
