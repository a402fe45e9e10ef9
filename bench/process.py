"""Cost of a managed process: time from spawn to its first output, and from the stop request to its verified end.

bare       subprocess.Popen in a new session; SIGTERM to its group, and waitpid
scope      a process in an open scope: spawn, close
captured   the same with a rotated log
cgroup     the same in a scope with a control group, if one can be created
opening    a new scope: the cost of its supervisor, once for all its processes

A program writes its first output to a pipe; the time runs from before the call until that is read, and from the call
that ends it until that returns: no process is left then. Further measurements: many processes at once and the memory of
their supervisors; and how long processes survive their owner or their supervisor.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from report import Goal, goals_table, machine, save, table

from muster.process import Log, Scope, descendants

PROGRAM = ["sh", "-c", "echo; exec sleep 1000"]
GRACE_S = 10.0
MAX_LOG_BYTES = 1 << 20
GOAL_STARTED_MS, GOAL_GONE_MS, GOAL_LOST_S = 15.0, 50.0, 3.0  # in addition to bare processes, and to the grace
LOST_GRACE_S = 0.5
LOST_REPEAT = 5

# An owner with a program that ignores TERM and one that has left its session.
OWNER = """
import asyncio, os, sys
from muster.process import Scope
async def main():
    scope = await Scope("bench", lost_owner_grace=float(sys.argv[1])).open()
    read, write = os.pipe()
    await scope.spawn(["sh", "-c", "trap '' TERM; setsid sleep 1000 & echo; while :; do sleep 1; done"], stdout=write)
    os.read(read, 1)
    print(scope.supervisor_pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


async def bare(directory: Path) -> tuple[float, float]:
    with FirstOutput() as output:
        start = time.perf_counter()
        process = subprocess.Popen(PROGRAM, stdout=output.fd, stdin=subprocess.DEVNULL, start_new_session=True)
        running = output.read() - start
        start = time.perf_counter()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        return running, time.perf_counter() - start


async def scope(directory: Path) -> tuple[float, float]:
    return await in_scope(Scope("bench"))


async def captured(directory: Path) -> tuple[float, float]:
    """The first output comes on stderr, which is not captured."""
    return await in_scope(Scope("bench"), log=Log(str(directory / "log"), MAX_LOG_BYTES))


async def cgroup(directory: Path) -> tuple[float, float]:
    return await in_scope(Scope("bench", cgroup=True))


async def in_scope(scope: Scope, **options: Any) -> tuple[float, float]:
    await scope.open()
    with FirstOutput() as output:
        start = time.perf_counter()
        await scope.spawn(["sh", "-c", "echo >&2; exec sleep 1000"], stderr=output.fd, **options)
        running = output.read() - start
        start = time.perf_counter()
        await scope.close(GRACE_S)
        return running, time.perf_counter() - start


async def opening(directory: Path) -> tuple[float, float]:
    start = time.perf_counter()
    scope = await Scope("bench").open()
    opened = time.perf_counter() - start
    start = time.perf_counter()
    await scope.close(GRACE_S)
    return opened, time.perf_counter() - start


class FirstOutput:
    """A pipe: `fd` is for the program; `read` returns when the program has written."""

    def __enter__(self) -> FirstOutput:
        self._read, self.fd = os.pipe()
        return self

    def read(self) -> float:
        os.read(self._read, 1)
        return time.perf_counter()

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        os.close(self.fd)


KINDS: dict[str, Callable[[Path], Awaitable[tuple[float, float]]]] = {
    "bare": bare,
    "scope": scope,
    "captured": captured,
    "cgroup": cgroup,
    "opening": opening,
}


async def latencies(repeat: int) -> dict[str, dict[str, float]]:
    """Return medians and 90th percentiles in milliseconds; the kinds are interleaved: load affects all of them."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with TemporaryDirectory() as directory:
        for _ in range(repeat + 1):
            for kind, measure in KINDS.items():
                times[kind].append(await measure(Path(directory)))
    found = {}
    for kind, pairs in times.items():
        started, ended = zip(*pairs[1:], strict=True)  # the first warms up
        found[kind] = {**summary("to_running_ms", started), **summary("to_gone_ms", ended)}
    return found


def summary(name: str, seconds: Sequence[float]) -> dict[str, float]:
    tenth = statistics.quantiles(seconds, n=10)[-1]
    return {name: round(statistics.median(seconds) * 1000, 2), f"{name}_p90": round(tenth * 1000, 2)}


async def many(count: int) -> dict[str, dict[str, float]]:
    """Measure many processes at once: bare, in one scope, and each in a separate scope."""
    return {
        "bare": many_bare(count),
        "one scope": await many_in(count, scopes=1),
        "a scope for each": await many_in(count, scopes=count),
    }


def many_bare(count: int) -> dict[str, float]:
    start = time.perf_counter()
    processes = [
        subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(count)
    ]
    started = time.perf_counter()
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        process.wait()
    return {"start_s": round(started - start, 3), "end_s": round(time.perf_counter() - started, 3)}


async def many_in(count: int, scopes: int) -> dict[str, float]:
    start = time.perf_counter()
    opened = await asyncio.gather(*(Scope("bench").open() for _ in range(scopes)))
    owned = await asyncio.gather(*(opened[n % scopes].spawn(["sleep", "1000"]) for n in range(count)))
    started = time.perf_counter()
    memory = sum(private_mb(each.supervisor_pid) for each in opened)
    measured = time.perf_counter()
    await asyncio.gather(*(each.close(GRACE_S) for each in opened))
    ended = time.perf_counter()
    left = [process.pid for process in owned if os.path.exists(f"/proc/{process.pid}")]
    return {
        "start_s": round(started - start, 3),
        "end_s": round(ended - measured, 3),
        "supervisors_mb": round(memory, 1),
        "left": len(left),
    }


def survival(victim: str) -> float:
    """Return the seconds from the end of an owner, or of its supervisor, until all its processes are dead."""
    argv = [sys.executable, "-c", OWNER, str(LOST_GRACE_S)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        supervisor = int(owner.stdout.readline())
        waiting = [os.pidfd_open(pid) for pid in descendants(supervisor)]
        start = time.perf_counter()
        os.kill(owner.pid if victim == "owner" else supervisor, signal.SIGKILL)
        for fd in waiting:
            select.select([fd], [], [])
            os.close(fd)
        gone = time.perf_counter() - start
        owner.kill()
    return gone


def private_mb(pid: int) -> float:
    """Return the memory that would be free without the process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


def main() -> int:
    options = _options()
    leave_on_signals()
    lost = {victim: [survival(victim) for _ in range(LOST_REPEAT)] for victim in ("owner", "supervisor")}
    results: dict[str, Any] = {
        "machine": machine(),
        "latency": asyncio.run(latencies(options.repeat)),
        "many": {"count": options.many, **asyncio.run(many(options.many))},
        "lost": {"grace_s": LOST_GRACE_S, **{f"{victim}_s": round(max(times), 2) for victim, times in lost.items()}},
    }
    wanted = goals(results)
    results["goals"] = [goal.to_json() for goal in wanted]
    path = save("process.json", results)
    print(_page(results, wanted, path))
    return 0 if all(goal.met for goal in wanted) else 1


def goals(results: dict[str, Any]) -> list[Goal]:
    owned, unowned = results["latency"]["scope"], results["latency"]["bare"]
    lost, many = results["lost"], results["many"]
    return [
        Goal("to running, more than bare", owned["to_running_ms"] - unowned["to_running_ms"], GOAL_STARTED_MS, " ms"),
        Goal("to gone, more than bare", owned["to_gone_ms"] - unowned["to_gone_ms"], GOAL_GONE_MS, " ms"),
        Goal("owner killed: gone beyond the grace", lost["owner_s"] - lost["grace_s"], GOAL_LOST_S, " s"),
        Goal("supervisor killed: gone", lost["supervisor_s"], GOAL_LOST_S, " s"),
        Goal("left of many", many["one scope"]["left"] + many["a scope for each"]["left"], 0),
    ]


def _page(results: dict[str, Any], wanted: list[Goal], path: Path) -> str:
    columns = ("to_running_ms", "to_running_ms_p90", "to_gone_ms", "to_gone_ms_p90")
    rows = [["milliseconds, median and p90", "running", "p90", "gone", "p90"]]
    rows += [[kind, *(f"{of[column]:g}" for column in columns)] for kind, of in results["latency"].items()]
    all_at_once = {kind: of for kind, of in results["many"].items() if kind != "count"}
    more = [[f"{results['many']['count']} at once", "start s", "end s", "supervisors MB"]]
    more += [
        [kind, f"{of['start_s']:g}", f"{of['end_s']:g}", f"{of.get('supervisors_mb', 0):g}"]
        for kind, of in all_at_once.items()
    ]
    return "\n\n".join([table(rows), table(more), goals_table(wanted), f"written to {path}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure managed processes, compared with a bare subprocess.Popen.")
    parser.add_argument("--repeat", type=int, default=30, metavar="N", help="starts of each kind (default: 30)")
    parser.add_argument("--many", type=int, default=200, metavar="N", help="processes at once (default: 200)")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
