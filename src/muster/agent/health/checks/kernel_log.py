"""Xid messages of the NVIDIA driver in the kernel log that point to damaged hardware."""

from __future__ import annotations

import re

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped

RECENT_S = 3600.0  # an older one may be repaired; a failure of the job is checked at once
# As classified by NVIDIA; not those of programs (13, 31, 43, 45) nor those that the GPU has contained (63, 94).
DAMAGES = {
    48: "double-bit memory error",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit memory errors",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered memory error",
}
_XID = re.compile(r"^\[ *(?P<time>\d+\.\d+)\] NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d+)", re.MULTILINE)


def check_xids(node: CheckedNode, threshold: float | None) -> Finding:
    done = node.output("dmesg")
    if done is None or done[0] != 0:
        return skipped("the kernel log cannot be read")
    with open("/proc/uptime", encoding="ascii") as file:
        return judge_log(done[1], float(file.read().split()[0]))


def judge_log(log: str, uptime: float) -> Finding:
    """Judge the output of dmesg, whose times are seconds since the boot, as `uptime` is."""
    recent = [found for found in _XID.finditer(log) if uptime - float(found["time"]) <= RECENT_S]
    damages = [
        f"GPU {found['gpu']}: Xid {found['xid']}, {DAMAGES[int(found['xid'])]}"
        for found in recent
        if int(found["xid"]) in DAMAGES
    ]
    return failed(damages[-1]) if damages else passed(f"{len(recent)} recent Xids")
