"""Check Slurm and the partition that a job would be submitted to. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from muster.doctor.check_result import CheckResult, best
from muster.doctor.slurm_facts import SlurmFacts

_UNUSABLE = re.compile(r"down|drain|drng|fail|maint|unk|no_respond|power|future|[*]", re.IGNORECASE)
OLDEST_SLURM = (20, 11)


def check_slurm(slurm: SlurmFacts) -> CheckResult:
    if slurm.error:
        advice = "check that this is a login node and that slurmctld and munge run: scontrol ping; munge -n | unmunge"
        return CheckResult("slurm", "fail", f"does not answer: {slurm.error}", advice)
    numbers = tuple(int(number) for number in re.findall(r"\d+", slurm.controller)[:2])
    if numbers < OLDEST_SLURM:
        what = f"slurmctld {slurm.controller}: its srun has no --overlap"
        return CheckResult("slurm", "fail", what, "upgrade to Slurm 20.11 or newer")
    if slurm.controller not in slurm.client:
        what = f"slurmctld {slurm.controller} answers; the commands here are {slurm.client}"
        return CheckResult("slurm", "pass", what)
    return CheckResult("slurm", "pass", f"slurmctld {slurm.controller} answers")


def check_partition(slurm: SlurmFacts, names: str | None, nodes: int, time: str | None) -> CheckResult:
    """Check whether a job of this size and time limit can start; of several partitions the best counts."""
    if slurm.error:
        return CheckResult("partition", "skip", "Slurm does not answer")
    by_name = {partition["PartitionName"]: partition for partition in slurm.partitions}
    default = [name for name, partition in by_name.items() if partition.get("Default") == "YES"]
    wanted = names.split(",") if names else default
    if not wanted:
        return CheckResult("partition", "fail", "there is no default partition", f"choose one: -p {_some(by_name)}")
    results = [_check_one(name, by_name, slurm.node_states, nodes, time) for name in wanted]
    return best(results)


def _check_one(
    name: str,
    by_name: Mapping[str, Mapping[str, str]],
    states: Mapping[str, Mapping[str, int]],
    nodes: int,
    time: str | None,
) -> CheckResult:
    def result(state: str, what: str, advice: str = "") -> CheckResult:
        return CheckResult("partition", state, f"{name}: {what}", advice)  # type: ignore[arg-type]

    if name not in by_name:
        return result("fail", "there is no such partition", f"choose one: -p {_some(by_name)}")
    partition = by_name[name]
    counts = states.get(name, {})
    usable = sum(count for state, count in counts.items() if not _UNUSABLE.search(state))
    total = int(partition.get("TotalNodes") or sum(counts.values()))
    most, limit = partition.get("MaxNodes", "UNLIMITED"), partition.get("MaxTime", "UNLIMITED")
    least = partition.get("MinNodes", "0")
    if partition.get("State", "UP") != "UP":
        return result("fail", f"its state is {partition['State']}", "choose another partition, or ask its admins")
    if nodes > total:
        return result("fail", f"has {total} nodes, {nodes} are requested", "request fewer with --nodes")
    if most.isdigit() and nodes > int(most):
        return result("fail", f"a job may have {most} nodes, {nodes} are requested", "request fewer with --nodes")
    if least.isdigit() and nodes < int(least):
        return result("fail", f"a job must have {least} nodes, {nodes} are requested", "request more with --nodes")
    if time is not None and minutes(time) > minutes(limit):
        return result("fail", f"the time limit is {limit}, --time is {time}", "request less with --time")
    default = partition.get("DefaultTime", "NONE")
    what = f"up, {usable} of {total} nodes usable ({_shown(counts)}), time limit {limit}" + (
        f", {default} without --time" if time is None and default not in ("NONE", limit) else ""
    )
    if nodes > usable:
        advice = "the job would wait until nodes return to service: sinfo -R shows why they are out"
        return result("warn", f"{what}; {nodes} are requested", advice)
    return result("pass", what)


def minutes(text: str) -> float:
    """Return the minutes of a time limit in Slurm's formats: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    if not re.fullmatch(r"[\d:-]+", text):
        return math.inf  # UNLIMITED, INFINITE
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, secs = (*parts, 0, 0)[:3]
        return int(days) * 1440 + hours * 60 + mins + secs / 60
    hours, mins, secs = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    return hours * 60 + mins + secs / 60


def _some(names: Mapping[str, object] | Sequence[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "") if listed else "(Slurm lists none)"


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none known"
