"""Cost of an agent on its node: import time, resident memory, operations on the shared filesystem.

import     new processes of the built archive, run as on the nodes (`python -I -S agent.pyz`), which import all of it
           and exit; interleaved with as many of a bare `import asyncio`. The whole process is timed: interpreter,
           bootstrap, imports.
memory     VmRSS of the leader's and a worker's agent in a run without Ray while its driver runs, and of their
           supervisors.
files      operations under the run directory by one node that is not the leader, from its prelude's first line to the
           start of the driver, and to the end of the run; counted in a trace (see tracing.py), with and without Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from local_run import RunFailed, held_run, private_home
from report import Goal, goals_table, machine, save, table
from tracing import count

from muster.launch.agent_archive import build_archive
from muster.process import descendants

NODES, WORKER = 4, 1
GOAL_IMPORT_MS, GOAL_MEMORY_MB, GOAL_OPERATIONS = 100.0, 30.0, 20
_RUN = "sys.exit(main(sys.argv[1:]))"
_IMPORT_ALL = "import importlib\nfor name in MODULES: importlib.import_module(name)"


def main() -> int:
    options = _options()
    leave_on_signals()
    try:
        with private_home() as directory:
            results: dict[str, Any] = {
                "machine": machine(),
                "import": import_times(directory, sys.executable, options.repeat),
            }
            results |= asyncio.run(of_runs(directory, sys.executable))
    except RunFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return INTERRUPTED
    wanted = goals(results)
    results["goals"] = [goal.to_json() for goal in wanted]
    path = save("agent.json", results)
    print(json.dumps(results, indent=2) if options.json_only else _page(results, wanted, path))
    return 0


async def of_runs(directory: Path, python: str) -> dict[str, Any]:
    """Measure agents in real runs. A signal cancels this, so that the current run is ended and awaited."""
    task = asyncio.current_task()
    assert task is not None
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    results: dict[str, Any] = {"memory": await memory(directory, python)}
    if shutil.which("strace"):
        results["files"] = {
            "without_ray": await operations(directory, python, ray=False),
            "with_ray": await operations(directory, python, ray=True),
        }
    return results


def import_times(directory: Path, python: str, repeat: int) -> dict[str, float]:
    """Return medians and minima in milliseconds; the kinds are interleaved, so that load on the machine affects all."""
    archive = directory / "agent.pyz"
    archive.write_bytes(build_archive(python))
    _import_and_leave(archive)
    commands = {"agent": [str(archive)], "bare_asyncio": ["-c", "import asyncio"], "bare_python": ["-c", "pass"]}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeat + 1):
        for name, arguments in commands.items():
            times[name].append(_wall_ms([python, "-I", "-S", *arguments]))
    measured = {name: found[1:] for name, found in times.items()}  # the first warms up
    medians = {f"{name}_ms": round(statistics.median(found), 1) for name, found in measured.items()}
    return medians | {f"{name}_least_ms": round(min(found), 1) for name, found in measured.items()}


def _import_and_leave(archive: Path) -> None:
    """Rewrite the bootstrap's last line: instead of running the agent, import all modules."""
    with zipfile.ZipFile(archive) as before:
        members = {name: before.read(name) for name in before.namelist()}
    bootstrap = members["__main__.py"].decode()
    assert bootstrap.count(_RUN) == 1, "the bootstrap's last line has changed"
    members["__main__.py"] = bootstrap.replace(_RUN, _IMPORT_ALL).encode()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as after:
        for name, data in members.items():
            after.writestr(name, data)


def _wall_ms(argv: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


async def memory(directory: Path, python: str) -> dict[str, float]:
    """Return the resident megabytes of the agents and of their supervisors."""
    async with held_run(directory, python, NODES, ray=False) as held:
        found = {}
        for name, rank in (("lead", 0), ("worker", WORKER)):
            pid = held.agent_pid(rank)
            found[f"{name}_mb"] = _resident_mb(pid)
            own = [child for child in descendants(pid) if _is_supervisor(child)]
            found[f"{name}_supervisors_mb"] = round(sum(map(_resident_mb, own)), 1)
        return found


def _resident_mb(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1)


def _is_supervisor(pid: int) -> bool:
    return b"-I\0-S\0-c\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def operations(directory: Path, python: str, *, ray: bool) -> dict[str, Any]:
    """Count rank 1's operations up to the driver's start by program; Ray's processes read the token."""
    trace = directory / f"trace-{ray}"
    async with held_run(directory, python, NODES, ray=ray, traced=WORKER, trace=trace) as held:
        root, until = held.run.root, held.driver_start
    with trace.open(encoding="utf-8", errors="replace") as lines:
        found = count(lines, root, until)
        lines.seek(0)
        whole = count(lines, root, math.inf)
    return {
        "total": found.total,
        "to_the_end": whole.total,
        "by_program": dict(found.by_program),
        "by_call": dict(found.by_call),
        "operations": found.listing,
    }


def goals(results: dict[str, Any]) -> list[Goal]:
    wanted = [
        Goal("import of the whole agent", results["import"]["agent_ms"], GOAL_IMPORT_MS, " ms"),
        Goal("resident memory, lead", results["memory"]["lead_mb"], GOAL_MEMORY_MB, " MB"),
        Goal("resident memory, worker", results["memory"]["worker_mb"], GOAL_MEMORY_MB, " MB"),
    ]
    if "files" in results:
        kinds = (("without_ray", "without Ray"), ("with_ray", "with Ray"))
        wanted += [
            Goal(f"operations on files, {text}", results["files"][kind]["total"], GOAL_OPERATIONS)
            for kind, text in kinds
        ]
    return wanted


def _page(results: dict[str, Any], wanted: list[Goal], path: Path) -> str:
    times, sizes = results["import"], results["memory"]
    rows = [["for comparison", ""], *([name, f"{value:g}"] for name, value in {**times, **sizes}.items())]
    for kind, found in results.get("files", {}).items():
        programs = ", ".join(f"{program} {n}" for program, n in found["by_program"].items())
        rows.append([f"operations {kind}", f"{programs}; to the end of the run {found['to_the_end']}"])
    skipped = [] if "files" in results else ["", "strace is not installed: operations on files were not counted"]
    return "\n".join([goals_table(wanted), "", table(rows), *skipped, "", f"written to {path}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of an agent on its node: import time, memory, file operations.")
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="processes for import times (default: 20)")
    parser.add_argument("--json-only", action="store_true", help="print the results as JSON and nothing else")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
