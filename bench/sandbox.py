"""Speed of the sandbox at each isolation level, compared with plain spawning and a server that spawns per request.

stateless      `print(1)` in Python, 4 clients on 4 slots; interleaved with as many `python3 -c`, two at a time, of the
               same interpreter, so that load on the machine affects all; medians of the rounds
one a request  the same requests to an HTTP server that starts `python3 -c` for each
fresh session  a cell in a new session; warm session: cells in existing sessions
sleepers       0.5 s sleeps: 32 clients on 32 slots, and 64 on 64
output         8 MB of output in one response
idle           cores used by an idle sandbox with all those sessions
memory         resident memory of the server before, and after each tenth of `--executions` programs

As root, the floor level needs an interpreter that every user can read: --python (default: this one or
/usr/bin/python3). The full level is measured with it, and with this interpreter with numpy and sympy preloaded, as on a
node.
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
from muster.sandbox.http.codec import HttpRequest, HttpResponse, RequestHead
from muster.sandbox.http.server import OpenConnections
from muster.sandbox.http.server import serve as serve_http

SOURCE = Path(__file__).resolve().parents[1] / "src"
NEMO_PER_S = 31.0  # requests per second of NeMo-Skills' server on two cores (reference value)
ONE = program("print(1)")
CLIENTS, SLEEP_S = 4, 0.5
NOBODY = 65534


@dataclass
class RunningSandbox:
    """A running server of one level, and the interpreter of its programs."""

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
        servers = [
            await stack.enter_async_context(served(name, chosen, level, preload))
            for name, chosen, level, preload in (
                ("floor", python, "floor", []),
                ("full", python, "full", []),
                ("full, preloaded", sys.executable, "full", ["numpy?", "sympy?"]),
            )
        ]
        results: dict[str, Any] = {"machine": machine(), "load_before": round(os.getloadavg()[0], 2)}
        results["stateless"] = await stateless(servers, options.rounds, options.requests)
        for server in servers:
            results[server.name] = await measure_server(server, options.requests)
        results["idle"] = await idle(servers)
        results["sleepers"] = await sleepers(python)
        results["memory"] = await memory(servers[1], options.executions)
    return results


async def memory_alone(options: argparse.Namespace) -> dict[str, Any]:
    async with served("full", options.python or readable_python(), "full", []) as server:
        return await memory(server, options.executions)


@contextlib.asynccontextmanager
async def served(
    name: str, python: str, level: str, preload: list[str], slots: int = CLIENTS
) -> AsyncIterator[RunningSandbox]:
    """Run a server in a separate process."""
    with tempfile.TemporaryDirectory(prefix="bench-sandbox-") as directory:
        os.chmod(directory, 0o755)
        ready = Path(directory, "ready.json")
        settings = {
            "port": 0,
            "ready_file": str(ready),
            "isolation": level,
            "python": python,
            "preload": preload,
            "workers_min": slots,
            "workers_max": slots,
            "scratch_dir": directory,
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
            yield RunningSandbox(name, facts["url"], python, process.pid, directory)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


# -- measurements -----------------------------------------------------------------------------------------------------


async def stateless(servers: list[RunningSandbox], rounds: int, requests: int) -> dict[str, Any]:
    """Measure the rates of all kinds, interleaved."""
    rates: dict[str, list[float]] = {}
    last: dict[str, Measured] = {}
    pythons = dict.fromkeys(server.python for server in servers)
    for _ in range(rounds):
        for number, python in enumerate(pythons):
            rate = await asyncio.to_thread(spawn_rate, python, max(20, requests // 4))
            rates.setdefault(f"spawning {number}", []).append(rate)
        for server in servers:
            last[server.name] = await load(server.url, CLIENTS, requests, ONE)
            rates.setdefault(server.name, []).append(last[server.name].rate)
        async with one_process_a_request(servers[0].python) as url:
            last["one a request"] = await load(url, CLIENTS, max(20, requests // 4), ONE)
            rates.setdefault("one a request", []).append(last["one a request"].rate)
    found = {name: round(statistics.median(one), 1) for name, one in rates.items()}
    against = {server.name: f"spawning {list(pythons).index(server.python)}" for server in servers}
    times = {name: found[name] / found[spawning] for name, spawning in against.items()}
    return {
        "per_second": found,
        "times_plain_spawning": {name: round(value, 2) for name, value in times.items()},
        "last_round": {name: one.to_json() for name, one in last.items()},
    }


def spawn_rate(python: str, count: int) -> float:
    """Return the rate of plain spawning, with as many processes at once as cores."""

    def one(_: int) -> None:
        subprocess.run([python, "-c", "print(1)"], stdout=subprocess.DEVNULL, check=True)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        started = time.perf_counter()
        list(pool.map(one, range(count)))
        return count / (time.perf_counter() - started)


@contextlib.asynccontextmanager
async def one_process_a_request(python: str) -> AsyncIterator[str]:
    """Run the baseline: the same HTTP server, and a new interpreter for each program, without isolation."""

    class Spawner:
        def refusal(self, head: RequestHead) -> None:
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


async def measure_server(server: RunningSandbox, requests: int) -> dict[str, Any]:
    run = uuid.uuid4().hex[:8]
    shown = program(f"print('x' * {8 << 20}, end='')", max_output_characters=16 << 20)
    await load(server.url, CLIENTS, CLIENTS, cell("1", lambda n: f"{run}-{n}"))  # creates the warm sessions
    found = {
        "warm session": await load(
            server.url, CLIENTS, 10 * requests, cell("print(1)", lambda n: f"{run}-{n % CLIENTS}")
        ),
        "fresh session": await load(
            server.url, CLIENTS, max(10, requests // 5), cell("print(1)", lambda n: f"{run}-f{n}")
        ),
        "8 MB output": await load(server.url, 2, 20, shown),
    }
    return {kind: one.to_json() for kind, one in found.items()}


async def idle(servers: list[RunningSandbox]) -> dict[str, float]:
    """Return the cores used by server, supervisors and workers; supervisors are not in the server's process tree."""
    found = {}
    for server in servers:
        before = _cpu_s(server)
        await asyncio.sleep(5)
        found[server.name] = round((_cpu_s(server) - before) / 5, 4)
    return found


def _cpu_s(server: RunningSandbox) -> float:
    below = [pid for supervisor in _supervisors(server) for pid in (supervisor, *descendants(supervisor))]
    total = 0
    for pid in (server.pid, *below):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _supervisors(server: RunningSandbox) -> list[int]:
    """Return the supervisors: their command lines name the directory to remove."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if server.directory.encode() + b"/muster-sandbox-" in argv:
                found.append(int(entry.name))
    return found


async def sleepers(python: str) -> dict[str, Any]:
    """Measure as many sleepers as slots, in multiples of one sleep."""
    code = program(f"import time; time.sleep({SLEEP_S})")
    found = {}
    for count in (32, 64):
        async with served(f"{count} slots", python, "full", [], slots=count) as server:
            await load(server.url, count, count, ONE)
            one = await load(server.url, count, count, code)
            found[f"{count} on {count}"] = {**one.to_json(), "sleeps": round(one.seconds / SLEEP_S, 2)}
            if count == 32:
                many, health = await asyncio.gather(load(server.url, 32, 320, code), health_while_busy(server.url))
                found["32 clients"] = {
                    **many.to_json(),
                    "sleeps": round(many.seconds / SLEEP_S, 2),
                    "health_ms": health,
                }
    return found


async def health_while_busy(url: str) -> dict[str, float]:
    """Return the response times of /health while every slot sleeps, in milliseconds."""
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


async def memory(server: RunningSandbox, executions: int) -> dict[str, Any]:
    """Measure the server's memory after each tenth; the first thousand executions fill its caches."""
    await load(server.url, CLIENTS, 1000, ONE)
    sizes, failures, started = [resident_mb(server.pid)], 0, time.perf_counter()
    for tenth in range(1, 11):
        failures += (await load(server.url, CLIENTS, executions // 10, ONE)).failures
        sizes.append(resident_mb(server.pid))
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
    """Return the goals; a minimum rate is expressed as a maximum time per program."""
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
    """Return an interpreter that every user can run, if programs run as another user; else this one."""
    if os.getuid() != 0:
        return sys.executable
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            check = [python, "-I", "-c", "import encodings.idna"]
            if subprocess.run(check, user=NOBODY, group=NOBODY, capture_output=True, cwd="/").returncode == 0:
                return python
    raise SystemExit("bench: no interpreter that every user can read was found: use --python PATH")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all kinds (default: 3)")
    parser.add_argument("--requests", type=int, default=400, help="requests per kind and round (default: 400)")
    parser.add_argument("--executions", type=int, default=20_000, help="programs for the memory (default: 20000)")
    parser.add_argument(
        "--memory-alone", action="store_true", help="measure only memory, e.g. with --executions 100000"
    )
    parser.add_argument("--python", help="interpreter of programs; see above")
    parser.add_argument("--json-only", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
