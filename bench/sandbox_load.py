"""Load a sandbox with honest and hostile programs at once, and verify every answer.

    python bench/sandbox_load.py [--seconds 120] [--clients 64] [--isolation auto] [--compare DIRECTORY] [--json FILE]

Honest programs have a unique answer each. Hostile ones exhaust memory, processes, disk and output, crash, leave
processes, or go on in sessions. Meanwhile /health is asked ten times a second, and the server's memory, processes, open
files, mounts and cgroups are counted at a quarter of the time and at the end. Then throughput is measured alternately
with another version (--compare, its `src` directory) and with bubblewrap, if it is installed.
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
from typing import Any

from muster.process.proctree import descendants, read_processes
from muster.sandbox.client.async_client import AsyncClient
from muster.sandbox.client.retry_rules import SandboxLost, SandboxUnavailable
from muster.sandbox.http import client as http_client
from muster.sandbox.http import codec

HEALTH_INTERVAL_S = 0.1
ROUNDS, ROUND_PROGRAMS, ROUND_CLIENTS = 3, 200, 8
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
        tops = [Path("/sys/fs/cgroup", name) for name in ("memory", "pids", "unified")]
        groups = [path for top in tops for path in top.glob(f"**/muster-sandbox-*-{pid}-*/*/")]
        return {
            "memory_mb": memory,
            "processes": len(below),
            "open_files": len(os.listdir(f"/proc/{pid}/fd")),
            "mounts": len(Path("/proc/mounts").read_text().splitlines()),
            "cgroups": len(groups),
            "scratch_entries": sum(1 for _ in self.place.rglob("*")),
        }

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


async def hostile(client: AsyncClient, rng: random.Random) -> str:
    name = rng.choice(list(HOSTILE))
    await client.execute(HOSTILE[name], "python", 2)
    return name


async def work(url: str, number: int, end: float, found: Counter[str], wrong: list[str]) -> None:
    rng = random.Random(number)
    client = AsyncClient(url, wait_s=120)
    try:
        while time.monotonic() < end:
            try:
                if number % 8 == 0:
                    found[f"hostile {await hostile(client, rng)}"] += 1
                elif await honest(client, rng, number):
                    found["right"] += 1
                else:
                    wrong.append(f"client {number}")
            except SandboxUnavailable:
                found["refused"] += 1
            except SandboxLost:
                found["not answered in time"] += 1
    finally:
        await client.close()


async def ask_health(url: str, end: float) -> list[float]:
    """Return the seconds of each answer of /health, sorted."""
    taken: list[float] = []
    reader, writer = await http_client.connect(url, 60)
    while time.monotonic() < end:
        started = time.monotonic()
        writer.write(codec.request_bytes("GET", "/health", {"Host": "localhost"}, b""))
        await http_client.read_response(reader)
        taken.append(time.monotonic() - started)
        await asyncio.sleep(HEALTH_INTERVAL_S)
    writer.close()
    return sorted(taken)


async def mixed_load(server: Server, clients: int, seconds: float) -> dict[str, Any]:
    end = time.monotonic() + seconds
    found: Counter[str] = Counter()
    wrong: list[str] = []
    url = server.facts["url"]
    tasks = [asyncio.ensure_future(work(url, number, end, found, wrong)) for number in range(clients)]
    # In a process for itself: the clients here keep their event loop busy.
    command = [sys.executable, __file__, "--health", url, "--seconds", str(seconds)]
    health = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    await asyncio.sleep(seconds / 4)
    early = server.count()
    await asyncio.gather(*tasks)
    taken = json.loads((await health.communicate())[0])
    await asyncio.sleep(2)
    return {
        "answers": dict(sorted(found.items())),
        "wrong": len(wrong),
        "health_ms": {
            name: round(1000 * taken[min(len(taken) - 1, int(len(taken) * share))], 1)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "at_a_quarter": early,
        "at_the_end": server.count(),
    }


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


def bubblewrap_rate() -> float | None:
    """Return programs per second when each is started in bubblewrap."""
    if shutil.which("bwrap") is None:
        return None
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--compare", help="src directory of another version")
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--health", metavar="URL", help="only measure /health of this server, and print the times")
    given = parser.parse_args()
    if given.health:
        print(json.dumps(asyncio.run(ask_health(given.health, time.monotonic() + given.seconds))))
        return
    own = str(Path(__file__).parents[1] / "src")
    settings = {"isolation": given.isolation, "workers_min": 4, "workers_max": 8, "memory_mb": 512, "scratch_mb": 64}
    server = Server(own, {**settings, "processes": 64})
    result: dict[str, Any] = {"isolation": server.facts["isolation"]["level"]}
    try:
        result |= asyncio.run(mixed_load(server, given.clients, given.seconds))
    finally:
        server.stop()
    servers = {"this": Server(own, settings)}
    if given.compare:
        servers["other"] = Server(given.compare, settings)
    rates: dict[str, list[float | None]] = {name: [] for name in (*servers, "bubblewrap")}
    try:
        for _ in range(ROUNDS):
            for name, one in servers.items():
                rates[name].append(round(asyncio.run(rate(one.facts["url"])), 1))
            found = bubblewrap_rate()
            rates["bubblewrap"].append(None if found is None else round(found, 1))
    finally:
        for one in servers.values():
            one.stop()
    result["programs_per_second"] = rates
    text = json.dumps(result, indent=1)
    print(text)
    if given.json:
        Path(given.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
