"""GPUs, from the output of nvidia-smi: number, memory errors, clocks and memory in use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped
from muster.agent.health.checks.space import show_bytes

LIST, QUERY = ("nvidia-smi", "-L"), ("nvidia-smi", "-q")
NO_PROGRAM = "nvidia-smi is not installed"
MIB = 1 << 20
_LISTED_GPU, _LISTED_MIG = re.compile(r"^GPU \d+: .*\(UUID: ", re.MULTILINE), re.compile(r"^ +MIG ", re.MULTILINE)
_SECTION = re.compile(r"^GPU ([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d)$", re.MULTILINE)
_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown")
_REPAIRS = (("Remapped Rows", "Pending"), ("Remapped Rows", "Remapping Failure Occurred"))


def check_count(node: CheckedNode, threshold: float | None) -> Finding:
    """Compare with the number that Slurm has allocated: other GPUs may be hidden, or belong to other jobs."""
    allocated = allocated_gpus(node.env)
    if not allocated:
        return skipped("Slurm has allocated no GPUs")
    done = node.output(*LIST)
    return skipped(NO_PROGRAM) if done is None else judge_count(done[1], allocated)


def check_ecc(node: CheckedNode, threshold: float) -> Finding:
    return _each_gpu(node, lambda gpu, report: judge_ecc(gpu, report, threshold))


def check_clocks(node: CheckedNode, threshold: float | None) -> Finding:
    return _each_gpu(node, judge_clocks)


def check_memory_in_use(node: CheckedNode, threshold: float) -> Finding:
    return _each_gpu(node, lambda gpu, report: judge_memory_in_use(gpu, report, threshold))


def allocated_gpus(env: Mapping[str, str]) -> int:
    """Return the number of GPUs that Slurm has allocated to this step on this node; 0 if it allocates none."""
    counts = [int(env[name]) for name in ("SLURM_GPUS_ON_NODE",) if env.get(name, "").isdigit()]
    if counts and env.get("CUDA_VISIBLE_DEVICES"):
        counts.append(len(env["CUDA_VISIBLE_DEVICES"].split(",")))
    return min(counts, default=0)


def judge_count(listing: str, allocated: int) -> Finding:
    """Judge the output of `nvidia-smi -L`. Instances of a divided GPU (MIG) are allocated one by one."""
    found = len(_LISTED_MIG.findall(listing)) or len(_LISTED_GPU.findall(listing))
    if found >= allocated:
        return passed(f"{found} GPUs")
    errors = [
        line.strip() for line in listing.splitlines() if line.strip() and not line.lstrip().startswith(("GPU ", "MIG "))
    ]
    return failed(f"{found} of {allocated} allocated GPUs are listed{f': {errors[0]}' if errors else ''}")


def judge_ecc(gpu: str, report: Mapping[str, str], most: float) -> str | None:
    """Return what is wrong with the memory of a GPU; None if nothing is."""
    errors = sum(
        int(value)
        for name, value in report.items()
        if name.startswith("ECC Errors/Volatile/") and "Uncorrectable" in name and value.isdigit()
    )
    if errors > most:
        return f"GPU {gpu} has {errors} uncorrected memory errors"
    due = [name for section, name in _REPAIRS if report.get(f"{section}/{name}") == "Yes"]
    due += [name for name in ("Pending Page Blacklist",) if report.get(f"Retired Pages/{name}") == "Yes"]
    return f"GPU {gpu} needs a reset or repair of its memory ({due[0]}: Yes)" if due else None


def judge_clocks(gpu: str, report: Mapping[str, str]) -> str | None:
    """Return which slowdown by the hardware is active on a GPU; None if none is."""
    active = [
        name for name in _SLOWDOWNS for key, value in report.items() if key.endswith("/" + name) and value == "Active"
    ]
    return f"the hardware slows down GPU {gpu} ({active[-1]})" if active else None


def judge_memory_in_use(gpu: str, report: Mapping[str, str], most: float) -> str | None:
    """Return how much memory of a GPU is in use, if that is too much; None if it is not."""
    found = re.fullmatch(r"(\d+) MiB", report.get("FB Memory Usage/Used", ""))
    used = int(found[1]) * MIB if found else 0
    return f"{show_bytes(used)} of the memory of GPU {gpu} are in use by other programs" if used > most else None


def parse_query(text: str) -> dict[str, dict[str, str]]:
    """Return the values in the output of `nvidia-smi -q`: by GPU, and by the path of headings, as in `Clocks/SM`."""
    parts = _SECTION.split(text)
    return {gpu: dict(_values(section)) for gpu, section in zip(parts[1::2], parts[2::2])}


def _values(section: str) -> Iterator[tuple[str, str]]:
    """Yield path and value. A heading may have a value, too, as `HW Slowdown`."""
    headings: list[tuple[int, str]] = []
    for line in section.splitlines():
        name, colon, value = line.partition(" : ")
        indent = len(name) - len(name.lstrip())
        if not name.strip():
            continue
        while headings and headings[-1][0] >= indent:
            headings.pop()
        path = "/".join([*(heading for _, heading in headings), name.strip()])
        headings.append((indent, name.strip()))
        if colon:
            yield path, value.strip()


def _each_gpu(node: CheckedNode, judge: Callable[[str, Mapping[str, str]], str | None]) -> Finding:
    """Judge the GPUs in the output of `nvidia-smi -q`."""
    done = node.output(*QUERY)
    if done is None:
        return skipped(NO_PROGRAM)
    gpus = parse_query(done[1])
    if not gpus:
        return skipped("nvidia-smi shows no GPU")  # gpu-count knows whether that is a failure
    wrong = [found for gpu, report in gpus.items() if (found := judge(gpu, report)) is not None]
    return failed("; ".join(wrong)) if wrong else passed(f"{len(gpus)} GPUs")
