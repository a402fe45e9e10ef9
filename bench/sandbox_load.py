"""Load a sandbox with honest and hostile programs at once, and verify every answer.

    python bench/sandbox_load.py [--seconds 600] [--clients 64] [--isolation auto] [--compare DIRECTORY] [--json FILE]

Honest programs have a unique answer each. Hostile ones exhaust memory, processes, disk and output, crash, leave
processes, or go on in sessions; each has the answers that are right for it. The server's memory is read at a quarter of
the time and at the end; its processes, open files, mounts, cgroups and files are counted before the load and after it,
once it is idle. Then throughput is measured alternately with another version (--compare, its `src` directory) and with
bubblewrap, if it is installed. The exit code is 1 if a goal is missed.

Meanwhile /health is asked ten times a second by a process that does nothing else. `wall` is the time that it takes;
`server` is without the time for which the server's event loop, or that process, waited for a CPU: on a machine with
few cores most of `wall` is the load's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from report import Goal, goals_table

from muster.process.proctree import descendants, read_processes
from muster.sandbox.client.async_client import AsyncClient
from muster.sandbox.client.retry_rules import SandboxLost, SandboxUnavailable
from muster.sandbox.http import client as http_client
from muster.sandbox.http import codec

HEALTH_INTERVAL_S = 0.1
HEALTH_GOAL_MS = 100.0
MEMORY_GROWTH_GOAL_MB = 10.0  # of the server: its histograms and the allocator settle within some MB
IDLE_S = 5.0  # after which the server ends workers beyond its minimum
SESSION_IDLE_S = 60.0  # a client that gave up leaves its session
IDLE_DEADLINE_S = 180.0
WORKERS_MIN = 4
OWN_SOURCE = str(Path(__file__).parents[1] / "src")
ROUNDS, ROUND_PROGRAMS, ROUND_CLIENTS = 5, 200, 8
SLOWDOWN_GOAL = 1.1  # rates of the same version differ that much on a machine with other load
BUBBLEWRAP_GOAL = 1 / 3
HOSTILE_TIMEOUT_S = 2.0
CUT = "<output cut>"
HOSTILE = {
    "memory": "x = bytearray(8 << 30)",
    "tree memory": "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
    "        x = bytearray(200 << 20); time.sleep(2); os._exit(0)\nfor _ in range(4): os.wait()",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "disk": "for n in range(200): open(f'f{n}', 'wb').write(bytes(1 << 20))",
    "output": "import os\nfor _ in range(64): os.write(1, b'x' * (1 << 20))",
    "newlines": "print('\\n' * 2_000_000)",
    "crash": "import os; os.kill(os.getpid(), 11)",
    "orphan": "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)",
    "endless": "while True: pass",
    "poison": "import os; os.chmod('.', 0o500)",
}
# What the answer to each may be, besides a timeout: its status, and what its output contains.
ALLOWED = {
    "memory": [("completed", "MemoryError")],
    "tree memory": [("completed", ""), ("error", "")],  # children may be ended, which it does not look at
    "fork bomb": [("error", "")],
    "disk": [("completed", "No space left"), ("error", "limit of written data")],
    "output": [("completed", "x" * 1000 + CUT)],
    "newlines": [("completed", "\n" * 1000 + CUT)],
    "crash": [("error", "SIGSEGV")],
    "orphan": [("completed", "")],
    "endless": [],
    "poison": [("completed", "")],
}


class Server:
    """A server of one version in a process."""

    def __init__(self, source: str, settings: dict[str, Any]) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="sandbox-load-"))
        self.ready = self.place / "ready.json"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "muster.sandbox", "-"],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source},
            cwd="/",
            text=True,
            start_new_session=True,  # with autogroups, the kernel divides CPUs among sessions first
        )
        assert self.process.stdin is not None
        values = {"port": 0, "ready_file": str(self.ready), "scratch_dir": str(self.place), "preload": [], **settings}
        self.process.stdin.write(json.dumps(values))
        self.process.stdin.close()
        while not self.ready.exists():
            if self.process.poll() is not None:
                sys.exit("the sandbox did not start")
            time.sleep(0.05)
        self.facts = json.loads(self.ready.read_text())

    def count(self) -> dict[str, int]:
        """Return what the server and its processes use."""
        pid = self.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        memory = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS"))
        processes = read_processes()
        supervisor = [one for one in processes if str(self.place).encode() in _arguments(one)]
        below = {child for one in (pid, *supervisor) for child in (one, *descendants(one, processes))}
        tops = [Path("/sys/fs/cgroup", name) for name in ("memory", "pids", "cpu", "unified")]
        groups = [path for top in tops for path in top.glob(f"**/muster-sandbox-*-{pid}-*/*/")]
        return {
            "memory_mb": memory,
            "processes": len(below),
            "open_files": len(os.listdir(f"/proc/{pid}/fd")),
            "mounts": Path("/proc/mounts").read_text().count(str(self.place)),  # others may mount something meanwhile
            "cgroups": len(groups),
            "scratch_entries": sum(1 for _ in self.place.rglob("*")),
        }

    async def idle_count(self) -> dict[str, int]:
        """Return what the server uses when nothing runs, and only the minimum of workers is left."""
        end = time.monotonic() + IDLE_DEADLINE_S
        while True:
            counted = self.count()
            load = json.loads(await _get(self.facts["url"], "/load"))
            if load["workers"] <= WORKERS_MIN and load["sessions"] + load["running"] == 0:
                return counted if counted == self.count() else await self.idle_count()
            if time.monotonic() > end:
                sys.exit(f"the server is not idle after {IDLE_DEADLINE_S:g} s: {load}")
            await asyncio.sleep(0.5)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.place, ignore_errors=True)


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def honest(client: AsyncClient, rng: random.Random, number: int) -> bool:
    """Run a program or cells with a unique answer; return whether the answer was right."""
    value = rng.randrange(10**12)
    kind = rng.randrange(4)
    if kind == 0:
        result = await client.execute(f"print({value} + 1)", "python", 60)
    elif kind == 1:
        result = await client.execute(f"echo $(({value} + 1))", "shell", 60)
    elif kind == 2:
        code = (
            f"import os\nopen('f', 'w').write(str({value} + 1))\nprint(*(open(name).read() for name in os.listdir()))"
        )
        result = await client.execute(code, "python", 60)
    else:
        name = f"load-{number % 32}-{value}"
        await client.execute(f"x = {value}", session=name, timeout=60)
        result = await client.execute("print(x + 1)", session=name, timeout=60)
        await client.delete_session(name)
    return result.status == "completed" and result.stdout == f"{value + 1}\n"


async def hostile(client: AsyncClient, name: str) -> bool:
    """Run a hostile program; return whether the answer is one of those that are right for it."""
    result = await client.execute(HOSTILE[name], "python", HOSTILE_TIMEOUT_S)
    output = result.stdout + result.stderr
    return result.status == "timeout" or any(
        result.status == status and found in output for status, found in ALLOWED[name]
    )


async def work(url: str, number: int, end: float, found: Counter[str], wrong: list[str]) -> None:
    rng = random.Random(number)
    client = AsyncClient(url, wait_s=120)
    try:
        while time.monotonic() < end:
            try:
                name = rng.choice(list(HOSTILE)) if number % 8 == 0 else None
                right = await (honest(client, rng, number) if name is None else hostile(client, name))
                found["honest" if name is None else f"hostile: {name}"] += 1
                if not right:
                    wrong.append(name or "honest")
            except SandboxUnavailable:
                found["refused"] += 1
            except SandboxLost:
                found["not answered in time"] += 1
    finally:
        await client.close()


async def _get(url: str, path: str) -> bytes:
    reader, writer = await http_client.connect(url, 60)
    writer.write(codec.request_bytes("GET", path, {"Host": "localhost"}, b""))
    _, body = await http_client.read_response(reader)
    writer.close()
    return body


async def ask_health(url: str, pid: int, end: float) -> dict[str, list[float]]:
    """Return the seconds of each answer of /health, with and without the time in which it waited for a CPU, sorted."""
    wall: list[float] = []
    server: list[float] = []
    reader, writer = await http_client.connect(url, 60)
    while time.monotonic() < end:
        started, waited = time.monotonic(), cpu_wait_s(pid) + cpu_wait_s(os.getpid())
        writer.write(codec.request_bytes("GET", "/health", {"Host": "localhost"}, b""))
        await http_client.read_response(reader)
        wall.append(time.monotonic() - started)
        server.append(max(0.0, wall[-1] - (cpu_wait_s(pid) + cpu_wait_s(os.getpid()) - waited)))
        await asyncio.sleep(HEALTH_INTERVAL_S)
    writer.close()
    return {"wall": sorted(wall), "server": sorted(server)}


def cpu_wait_s(pid: int) -> float:
    """Return for how long the main thread of a process was runnable without a CPU."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


async def mixed_load(server: Server, clients: int, seconds: float) -> dict[str, Any]:
    url, pid = server.facts["url"], server.process.pid
    before = await server.idle_count()
    end = time.monotonic() + seconds
    found: Counter[str] = Counter()
    wrong: list[str] = []
    tasks = [asyncio.ensure_future(work(url, number, end, found, wrong)) for number in range(clients)]
    # In a process for itself: the clients here keep their event loop busy.
    command = [sys.executable, __file__, "--health", url, str(pid), "--seconds", str(seconds)]
    health = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, start_new_session=True)
    await asyncio.sleep(seconds / 4)
    early = server.count()
    await asyncio.gather(*tasks)
    late = server.count()
    taken = json.loads((await health.communicate())[0])
    return {
        "load_average": os.getloadavg()[1],
        "answers": dict(sorted(found.items())),
        "wrong": wrong,
        "health_ms": {kind: _percentiles(times) for kind, times in taken.items()},
        "at_a_quarter": early,
        "at_the_end": late,
        "idle_before": before,
        "idle_after": await server.idle_count(),
    }


def _percentiles(times: list[float]) -> dict[str, float]:
    """Return percentiles in ms of sorted seconds."""
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {name: round(1000 * times[min(len(times) - 1, int(len(times) * share))], 1) for name, share in shares}


def load_goals(result: dict[str, Any]) -> list[Goal]:
    health = result["health_ms"]
    goals = [
        Goal("wrong answers", len(result["wrong"]), 0),
        Goal("/health p99, server", health["server"]["p99"], HEALTH_GOAL_MS, " ms", below=True),
        Goal("/health p99, wall", health["wall"]["p99"], HEALTH_GOAL_MS, " ms", below=True),
    ]
    grown = result["at_the_end"]["memory_mb"] - result["at_a_quarter"]["memory_mb"]
    goals.append(Goal("growth of memory under load", grown, MEMORY_GROWTH_GOAL_MB, " MB"))
    for what, before in result["idle_before"].items():
        if what != "memory_mb":
            goals.append(Goal(f"growth of {what}, idle", result["idle_after"][what] - before, 0))
    return goals


def rate_goals(rates: dict[str, list[float]]) -> list[Goal]:
    """Compare medians of rounds that were run in turn."""
    this = median(rates["this"])
    goals = {"other": SLOWDOWN_GOAL, "bubblewrap": BUBBLEWRAP_GOAL}
    return [Goal(f"rate of {name} / this", median(rates[name]) / this, goals[name]) for name in goals if rates[name]]


async def rate(url: str) -> float:
    """Return programs per second of several clients."""
    left = iter(range(ROUND_PROGRAMS))
    clients = [AsyncClient(url) for _ in range(ROUND_CLIENTS)]

    async def run(client: AsyncClient) -> None:
        for _ in left:
            assert (await client.execute("print(42)", "python", 60)).stdout == "42\n"

    started = time.monotonic()
    await asyncio.gather(*map(run, clients))
    seconds = time.monotonic() - started
    for client in clients:
        await client.close()
    return ROUND_PROGRAMS / seconds


def bubblewrap_rate() -> float:
    """Return programs per second when each is started in bubblewrap."""
    command = ["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all"]
    command += [os.path.realpath(sys.executable), "-I", "-c", "print(42)"]
    started, running, count = time.monotonic(), [], ROUND_PROGRAMS // 4
    for _ in range(count):
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        if len(running) == ROUND_CLIENTS:
            running.pop(0).wait()
    for one in running:
        one.wait()
    return count / (time.monotonic() - started)


def measure_rates(compare: str | None, settings: dict[str, Any]) -> dict[str, list[float]]:
    """Return programs per second of this version, of another one, and with bubblewrap, by round."""
    servers = {"this": Server(OWN_SOURCE, settings)}
    rates: dict[str, list[float]] = {"this": [], "other": [], "bubblewrap": []}
    try:
        if compare:
            servers["other"] = Server(compare, settings)
        for _ in range(ROUNDS):
            for name, one in servers.items():
                rates[name].append(round(asyncio.run(rate(one.facts["url"])), 1))
            if shutil.which("bwrap") is not None:
                rates["bubblewrap"].append(round(bubblewrap_rate(), 1))
    finally:
        for one in servers.values():
            one.stop()
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--compare", help="src directory of another version")
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--health", nargs=2, metavar=("URL", "PID"), help="only measure /health, and print the times")
    given = parser.parse_args()
    if given.health:
        url, pid = given.health
        print(json.dumps(asyncio.run(ask_health(url, int(pid), time.monotonic() + given.seconds))))
        return 0
    settings = {"isolation": given.isolation, "workers_min": WORKERS_MIN, "workers_max": 8, "memory_mb": 512}
    server = Server(
        OWN_SOURCE, {**settings, "scratch_mb": 64, "processes": 64, "idle_s": IDLE_S, "session_idle_s": SESSION_IDLE_S}
    )
    result: dict[str, Any] = {"isolation": server.facts["isolation"]["level"]}
    try:
        result |= asyncio.run(mixed_load(server, given.clients, given.seconds))
    finally:
        server.stop()
    result["programs_per_second"] = measure_rates(given.compare, settings)
    goals = [*load_goals(result), *rate_goals(result["programs_per_second"])]
    result["goals"] = [goal.to_json() for goal in goals]
    print(json.dumps(result, indent=1))
    print(goals_table(goals))
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
