"""How fast is the sandbox, at each isolation level, beside plain spawning and a server that spawns for each request?

stateless      `print(1)` in Python, 4 clients on 4 slots; in turn with as many `python3 -c`, two at a time, of the same
               interpreter, so that a busy moment of the machine meets all; medians of the rounds
one a request  the same requests at an HTTP server (ours) that starts `python3 -c` for each
fresh session  a cell in a session that is made for it; warm session: cells in sessions that are there
sleepers       0.5 s sleeps: 32 clients on 32 slots, and 64 on 64
output         8 MB printed and answered
idle           cores that a sandbox takes with all those sessions and nothing to do
memory         resident memory of the server before, and after each tenth of `--executions` programs

The floor wants an interpreter that every user may read when we are root; --python names one (default: the first of this
one and /usr/bin/python3 that is). The full level is measured with it, and again with this one, numpy and sympy imported
ahead, as a node has it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from report import Goal, goals_table, machine, save, table

from muster.process.proctree import descendants
from muster.sandbox.client.loadgen import Measured, cell, load, program
from muster.sandbox.http.server import Head, HttpRequest, HttpResponse, OpenConnections
from muster.sandbox.http.server import serve as serve_http

SOURCE = Path(__file__).resolve().parents[1] / "src"
NEMO_PER_S = 31.0  # NeMo-Skills' server on two cores, as the project's facts have it
ONE = program("print(1)")
CLIENTS, SLEEP_S = 4, 0.5
NOBODY = 65534


@dataclass
class Place:
    """A server of one level that runs, and the interpreter of its programs."""

    name: str
    url: str
    python: str
    pid: int
    directory: str


def main() -> int:
    options = _options()
    leave_on_signals()
    try:
        if options.memory_alone:
            print(json.dumps(asyncio.run(memory_alone(options)), indent=2))
            return 0
        results = asyncio.run(measure(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    wanted = goals(results)
    results["goals"] = [goal.to_json() for goal in wanted]
    path = save("sandbox.json", results)
    print(json.dumps(results, indent=2) if options.json_only else page(results, wanted, path))
    return 0


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    python = options.python or readable_python()
    async with contextlib.AsyncExitStack() as stack:
        places = [
            await stack.enter_async_context(served(name, chosen, level, preload))
            for name, chosen, level, preload in (
                ("floor", python, "floor", []),
                ("full", python, "full", []),
                ("full, preloaded", sys.executable, "full", ["numpy?", "sympy?"]),
            )
        ]
        results: dict[str, Any] = {"machine": machine(), "load_before": round(os.getloadavg()[0], 2)}
        results["stateless"] = await stateless(places, options.rounds, options.requests)
        for place in places:
            results[place.name] = await one_place(place, options.requests)
        results["idle"] = await idle(places)
        results["sleepers"] = await sleepers(python)
        results["memory"] = await memory(places[1], options.executions)
    return results


async def memory_alone(options: argparse.Namespace) -> dict[str, Any]:
    async with served("full", options.python or readable_python(), "full", []) as place:
        return await memory(place, options.executions)


@contextlib.asynccontextmanager
async def served(name: str, python: str, level: str, preload: list[str], slots: int = CLIENTS) -> AsyncIterator[Place]:
    """A server in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-sandbox-") as place:
        os.chmod(place, 0o755)
        ready = Path(place, "ready.json")
        settings = {
            "port": 0,
            "ready_file": str(ready),
            "isolation": level,
            "python": python,
            "preload": preload,
            "workers_min": slots,
            "workers_max": slots,
            "scratch_dir": place,
            "queue": 10_000,
            "queue_wait_s": 3.5,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "muster.sandbox", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings).encode())
        process.stdin.close()
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit(f"bench: the sandbox ({name}) did not start")
                await asyncio.sleep(0.05)
            facts = json.loads(ready.read_text())
            yield Place(name, facts["url"], python, process.pid, place)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


# -- what is measured -------------------------------------------------------------------------------------------------


async def stateless(places: list[Place], rounds: int, requests: int) -> dict[str, Any]:
    """Rates of each kind, in turn."""
    rates: dict[str, list[float]] = {}
    last: dict[str, Measured] = {}
    pythons = dict.fromkeys(place.python for place in places)
    for _ in range(rounds):
        for number, python in enumerate(pythons):
            rate = await asyncio.to_thread(spawn_rate, python, max(20, requests // 4))
            rates.setdefault(f"spawning {number}", []).append(rate)
        for place in places:
            last[place.name] = await load(place.url, CLIENTS, requests, ONE)
            rates.setdefault(place.name, []).append(last[place.name].rate)
        async with one_process_a_request(places[0].python) as url:
            last["one a request"] = await load(url, CLIENTS, max(20, requests // 4), ONE)
            rates.setdefault("one a request", []).append(last["one a request"].rate)
    found = {name: round(statistics.median(one), 1) for name, one in rates.items()}
    against = {place.name: f"spawning {list(pythons).index(place.python)}" for place in places}
    times = {name: found[name] / found[spawning] for name, spawning in against.items()}
    return {
        "per_second": found,
        "times_plain_spawning": {name: round(value, 2) for name, value in times.items()},
        "last_round": {name: one.to_json() for name, one in last.items()},
    }


def spawn_rate(python: str, count: int) -> float:
    """Plain spawning: as many at once as there are cores."""

    def one(_: int) -> None:
        subprocess.run([python, "-c", "print(1)"], stdout=subprocess.DEVNULL, check=True)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        started = time.perf_counter()
        list(pool.map(one, range(count)))
        return count / (time.perf_counter() - started)


@contextlib.asynccontextmanager
async def one_process_a_request(python: str) -> AsyncIterator[str]:
    """The baseline: our HTTP, and an interpreter started for each program, without any wall."""

    class Spawner:
        def refusal(self, head: Head) -> None:
            return None

        async def __call__(self, request: HttpRequest) -> HttpResponse:
            process = await asyncio.create_subprocess_exec(
                python, "-c", request.json()["generated_code"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            out, err = await process.communicate()
            return HttpResponse(200, {"process_status": "completed", "stdout": out.decode(), "stderr": err.decode()})

    sock, connections = socket.create_server(("127.0.0.1", 0)), OpenConnections(1024)
    server = await serve_http(Spawner(), connections, sock)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.close()
        for connection in connections:
            connection.finish()


async def one_place(place: Place, requests: int) -> dict[str, Any]:
    run = uuid.uuid4().hex[:8]
    shown = program(f"print('x' * {8 << 20}, end='')", max_output_characters=16 << 20)
    await load(place.url, CLIENTS, CLIENTS, cell("1", lambda n: f"{run}-{n}"))  # the warm ones are made
    found = {
        "warm session": await load(
            place.url, CLIENTS, 10 * requests, cell("print(1)", lambda n: f"{run}-{n % CLIENTS}")
        ),
        "fresh session": await load(
            place.url, CLIENTS, max(10, requests // 5), cell("print(1)", lambda n: f"{run}-f{n}")
        ),
        "8 MB output": await load(place.url, 2, 20, shown),
    }
    return {kind: one.to_json() for kind, one in found.items()}


async def idle(places: list[Place]) -> dict[str, float]:
    """Of the server and all below it; the supervisor has left the server's tree, and owns the rest."""
    found = {}
    for place in places:
        before = _cpu_s(place)
        await asyncio.sleep(5)
        found[place.name] = round((_cpu_s(place) - before) / 5, 4)
    return found


def _cpu_s(place: Place) -> float:
    below = [pid for supervisor in _supervisors(place) for pid in (supervisor, *descendants(supervisor))]
    total = 0
    for pid in (place.pid, *below):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _supervisors(place: Place) -> list[int]:
    """Whoever was told to remove the place."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if place.directory.encode() + b"/muster-sandbox-" in words:
                found.append(int(entry.name))
    return found


async def sleepers(python: str) -> dict[str, Any]:
    """How many sleeps as many sleepers as slots take."""
    code = program(f"import time; time.sleep({SLEEP_S})")
    found = {}
    for count in (32, 64):
        async with served(f"{count} slots", python, "full", [], slots=count) as place:
            await load(place.url, count, count, ONE)
            one = await load(place.url, count, count, code)
            found[f"{count} on {count}"] = {**one.to_json(), "sleeps": round(one.seconds / SLEEP_S, 2)}
            if count == 32:
                many, health = await asyncio.gather(load(place.url, 32, 320, code), health_while_busy(place.url))
                found["32 clients"] = {
                    **many.to_json(),
                    "sleeps": round(many.seconds / SLEEP_S, 2),
                    "health_ms": health,
                }
    return found


async def health_while_busy(url: str) -> dict[str, float]:
    """Answers of /health while every slot sleeps, in milliseconds."""
    address = url.removeprefix("http://").split(":")
    times = []
    for _ in range(50):
        await asyncio.sleep(0.05)
        started = time.perf_counter()
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()
        times.append(1e3 * (time.perf_counter() - started))
    return {"p50": round(statistics.median(times), 2), "most": round(max(times), 2)}


async def memory(place: Place, executions: int) -> dict[str, Any]:
    """Of the server itself, after each tenth; the first thousand fill its caches."""
    await load(place.url, CLIENTS, 1000, ONE)
    sizes, failures, started = [resident_mb(place.pid)], 0, time.perf_counter()
    for tenth in range(1, 11):
        failures += (await load(place.url, CLIENTS, executions // 10, ONE)).failures
        sizes.append(resident_mb(place.pid))
        print(f"memory after {tenth * (executions // 10)} executions: {sizes[-1]} MB", file=sys.stderr, flush=True)
    return {
        "executions": executions,
        "failures": failures,
        "before_mb": sizes[0],
        "after_mb": sizes[-1],
        "after_each_tenth_mb": sizes[1:],
        "growth_mb": round(sizes[-1] - sizes[0], 2),
        "per_second": round(executions / (time.perf_counter() - started), 1),
    }


def resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return round(int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 2)


# -- goals and the page -----------------------------------------------------------------------------------------------


def goals(results: dict[str, Any]) -> list[Goal]:
    """A goal of so many a second is one of so much time for each."""
    times, rates = results["stateless"]["times_plain_spawning"], results["stateless"]["per_second"]
    failures = _failures(results)
    return [
        Goal("floor: time of a program, as part of plain spawning's", 1 / times["floor"], 1 / 2.5),
        Goal("full: the same", 1 / times["full"], 1 / 1.5),
        Goal("full, preloaded: the same", 1 / times["full, preloaded"], 1 / 1.5),
        Goal("floor: time of a program, as part of NeMo-Skills'", NEMO_PER_S / rates["floor"], 1 / 5),
        Goal("full: the same", NEMO_PER_S / rates["full"], 1 / 5),
        Goal("a warm session's cell", 1e3 / results["full"]["warm session"]["per_second"], 1.0, " ms"),
        Goal("64 sleepers on 64 slots, in sleeps", results["sleepers"]["64 on 64"]["sleeps"], 1.5),
        Goal("/health with every slot busy, median", results["sleepers"]["32 clients"]["health_ms"]["p50"], 100, " ms"),
        Goal("cores taken by an idle sandbox", max(results["idle"].values()), 0.05),
        Goal("growth of the server's memory", results["memory"]["growth_mb"], 5.0, " MB"),
        Goal("failures", failures, 0),
    ]


def _failures(results: Any) -> int:
    if isinstance(results, dict):
        return sum(value if name == "failures" else _failures(value) for name, value in results.items())
    return 0


def page(results: dict[str, Any], wanted: list[Goal], path: Path) -> str:
    rates = results["stateless"]["per_second"]
    times = results["stateless"]["times_plain_spawning"]
    first = [["stateless python", "per second", "x plain spawning"]]
    first += [[name, f"{rate:.0f}", f"{times[name]:.2f}" if name in times else ""] for name, rate in rates.items()]
    second = [["", "per second", "p50 ms", "p99 ms", "failures"]]
    for name in ("floor", "full", "full, preloaded"):
        for kind, one in results[name].items():
            second.append(
                [
                    f"{name}: {kind}",
                    f"{one['per_second']:g}",
                    f"{one['p50_ms']:g}",
                    f"{one['p99_ms']:g}",
                    str(one["failures"]),
                ]
            )
    third = [["sleepers", "sleeps", "failures"]]
    third += [[name, f"{one['sleeps']:g}", str(one["failures"])] for name, one in results["sleepers"].items()]
    parts = [table(first), table(second), table(third), goals_table(wanted), f"all of it: {path.name} in bench/results"]
    return "\n\n".join(parts)


def readable_python() -> str:
    """The first interpreter that another user may run, when programs run as one; else this."""
    if os.getuid() != 0:
        return sys.executable
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            check = [python, "-I", "-c", "import encodings.idna"]
            if subprocess.run(check, user=NOBODY, group=NOBODY, capture_output=True, cwd="/").returncode == 0:
                return python
    raise SystemExit("bench: no interpreter here that every user may read: --python PATH")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of the kinds in turn (default: 3)")
    parser.add_argument("--requests", type=int, default=400, help="of each kind in a round (default: 400)")
    parser.add_argument("--executions", type=int, default=20_000, help="for the memory (default: 20000)")
    parser.add_argument("--memory-alone", action="store_true", help="measure nothing else; --executions 100000, say")
    parser.add_argument("--python", help="of programs; see above")
    parser.add_argument("--json-only", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
