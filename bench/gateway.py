"""Compare the sandbox's gateway with nginx by the same routing rules, in turn within one run.

python            the balancer of a sandbox server, as shipped: keeps connections of clients
nginx             one worker, least_conn, kept connections to the members, one client connection per request (nginx
                  closes kept connections when it is reloaded with new members, perhaps as a request is sent)
nginx keep-alive  the same with kept client connections: the best case, for a list of members that never changes

Members are cheap HTTP servers on loopback, all in one process, so that the gateway is the bottleneck. For each gateway
and number of members: requests per second, latency, CPU time of the gateway's processes per request, and their memory
(PSS). The load generator is Python too, and limits requests per second where the gateway does not; CPU time per request
does not depend on it. `direct` sends to one member without a gateway. The last case runs real programs in a real
sandbox through its gateway. Rows of nginx are omitted where it is not installed. With a thousand members the gateway of
the sandbox is also measured while its list of members changes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from report import machine, save, table

from muster.process.proctree import descendants
from muster.sandbox.client.loadgen import load, program

SOURCE = Path(__file__).resolve().parents[1] / "src"
TOKEN = "bench"
MEMBERS = (4, 64)
CLIENTS = (16, 256)
MANY_MEMBERS = 1000
LARGE = 8 << 20
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
START_S = 60.0
TINY, LARGE_OUTPUT = program("print(1)"), program("large")


@dataclass(frozen=True)
class Gateway:
    """A running gateway: its URL and the processes to be measured."""

    url: str
    pids: tuple[int, ...]
    members_file: Path | None = None


def main() -> int:
    options = _options()
    if options.members:
        asyncio.run(serve_members(options.members))
        return 0
    leave_on_signals()
    try:
        results = asyncio.run(measure(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    path = save("gateway.json", results)
    print(page(results, path))
    return 0


# -- members ----------------------------------------------------------------------------------------------------------


class Member(asyncio.Protocol):
    """Answers each request with a constant result, after reading its body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) != -1:
            head = bytes(self._buffer[:end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            stdout = b"x" * LARGE if b'"large"' in self._buffer else b"1\\n"
            del self._buffer[: end + 4 + length]
            body = b'{"process_status": "completed", "stdout": "%b", "stderr": ""}' % stdout
            kind = b"Content-Type: application/json\r\nX-Muster-Node: bench\r\n"
            self._transport.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (kind, len(body), body))


async def serve_members(count: int) -> None:
    """Serve on this many ports, print their endpoints, and serve until stdin is closed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each member has a socket, and one for each connection
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Member, "127.0.0.1", 0) for _ in range(count)]
    print(json.dumps([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextlib.asynccontextmanager
async def members(count: int) -> AsyncIterator[list[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--members", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(10)


# -- gateways ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def python_gateway(endpoints: list[str] | None) -> AsyncIterator[Gateway]:
    """Start a sandbox server as a cluster's node with these members; None: only itself."""
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as place:
        os.chmod(place, 0o755)
        ready, members_file = Path(place, "ready.json"), Path(place, "members.json")
        settings = {
            "port": 0,
            "ready_file": str(ready),
            "preload": [],
            "workers_min": 4,
            "workers_max": 4,
            "scratch_dir": place,
            "listen": "127.0.0.1:0",
            "token": TOKEN,
            "members_file": str(members_file),
        }
        if endpoints is not None:
            members_file.write_text(json.dumps({"version": 1, "endpoints": endpoints}))
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
            await wait_until(lambda: ready.exists() or process.poll() is not None)
            yield Gateway(json.loads(ready.read_text())["url"], (process.pid,), members_file)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextlib.asynccontextmanager
async def nginx_gateway(endpoints: list[str], keep_alive: bool) -> AsyncIterator[Gateway]:
    assert NGINX is not None
    with tempfile.TemporaryDirectory(prefix="bench-nginx-") as place:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        Path(place, "nginx.conf").write_text(nginx_configuration(place, port, endpoints, keep_alive))
        process = subprocess.Popen([NGINX, "-p", place, "-e", "stderr", "-c", f"{place}/nginx.conf"])
        try:
            await wait_until(lambda: process.poll() is not None or is_listening(port))
            yield Gateway(f"http://127.0.0.1:{port}", (process.pid, *descendants(process.pid)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def nginx_configuration(place: str, port: int, endpoints: list[str], keep_alive: bool) -> str:
    servers = "\n".join(
        f"server {endpoint.removeprefix('http://')} max_fails=1 fail_timeout=5s;" for endpoint in endpoints
    )
    user = "user root root;" if os.getuid() == 0 else ""
    temporary = " ".join(
        f"{name}_temp_path {place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""{user} daemon off; worker_processes 1; pid {place}/pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off; {temporary} client_max_body_size 64m; client_body_buffer_size 1m;
    keepalive_timeout {300 if keep_alive else 0}; keepalive_requests 1000000;
    map $http_x_session_id $key {{ "" $http_x_workspace_id; default $http_x_session_id; }}
    upstream any {{ least_conn; {servers} keepalive 64; keepalive_timeout 30s; }}
    upstream keyed {{ hash $key consistent; {servers} keepalive 64; keepalive_timeout 30s; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Authorization "Bearer {TOKEN}";
        proxy_connect_timeout 2s; proxy_read_timeout 3660s; proxy_next_upstream error timeout;
        proxy_buffering off; proxy_buffers 16 64k; proxy_buffer_size 64k;
        add_header X-Muster-Member $upstream_addr always;
        error_page 418 = @keyed;
        location / {{ if ($key != "") {{ return 418; }} proxy_pass http://any; }}
        location @keyed {{ proxy_next_upstream off; proxy_pass http://keyed; }}
    }}
}}
"""


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def wait_until(condition: Any) -> None:
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("bench: a gateway did not start")
        await asyncio.sleep(0.05)


# -- measuring --------------------------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "load_before": round(os.getloadavg()[0], 2), "cases": {}}
    for count in MEMBERS:
        async with contextlib.AsyncExitStack() as stack:
            endpoints = await stack.enter_async_context(members(count))
            gateways = {
                "direct": Gateway(endpoints[0], ()),
                "python": await stack.enter_async_context(python_gateway(endpoints)),
            }
            for name, keep_alive in (("nginx", False), ("nginx keep-alive", True)) if NGINX else ():
                gateways[name] = await stack.enter_async_context(nginx_gateway(endpoints, keep_alive))
            for clients in CLIENTS:
                found = await rounds(gateways, clients, options.requests, options.rounds, TINY)
                results["cases"][f"{count} members, {clients} clients"] = found
            found = await rounds(gateways, 4, 40, options.rounds, LARGE_OUTPUT)
            results["cases"][f"{count} members, 4 clients, 8 MB each"] = found
    async with members(MANY_MEMBERS) as endpoints, python_gateway(endpoints) as gateway:
        found = await rounds({"python": gateway}, 16, options.requests, options.rounds, TINY)
        results["cases"][f"{MANY_MEMBERS} members, 16 clients"] = found
        results["many_members"] = membership_change(gateway, endpoints)
    async with python_gateway(None) as gateway:
        results["cases"]["print(1) at a real sandbox, 4 clients"] = {
            "python": await one_round(gateway, 4, options.requests // 4, TINY)
        }
    return results


def membership_change(gateway: Gateway, endpoints: list[str]) -> dict[str, float]:
    """Remove one member of many; return when the gateway knows it, the CPU time for it, and the latency of /health."""
    assert gateway.members_file is not None
    version, before = health(gateway)["gateway"]["version"], sum(map(cpu_s, gateway.pids))
    began, latencies = time.monotonic(), []
    replacement = gateway.members_file.with_suffix(".new")
    replacement.write_text(json.dumps({"version": version + 1, "endpoints": endpoints[1:]}))
    replacement.rename(gateway.members_file)
    while True:
        asked = time.monotonic()
        known = health(gateway)["gateway"]
        latencies.append(time.monotonic() - asked)
        if known["version"] > version:
            break
        if time.monotonic() - began > START_S:
            raise SystemExit("bench: the gateway did not read its new members")
    passed = time.monotonic() - began
    latencies += [_latency(gateway) for _ in range(100)]
    assert known["members"] == len(endpoints) - 1
    return {
        "change_known_s": round(passed, 3),
        "change_cpu_s": round(sum(map(cpu_s, gateway.pids)) - before, 3),  # with the requests to /health
        "health_p50_ms": round(1e3 * statistics.median(latencies), 2),
        "health_max_ms": round(1e3 * max(latencies), 2),
    }


def _latency(gateway: Gateway) -> float:
    asked = time.monotonic()
    health(gateway)
    return time.monotonic() - asked


def health(gateway: Gateway) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.url}/health", timeout=START_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


async def rounds(
    gateways: dict[str, Gateway], clients: int, requests: int, count: int, body: Any
) -> dict[str, dict[str, float]]:
    """Return medians of rounds in which all gateways take their turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in gateways}
    for _ in range(count):
        for name, gateway in gateways.items():
            found[name].append(await one_round(gateway, clients, requests, body))
    return {
        name: {key: round(statistics.median(one[key] for one in ones), 3) for key in ones[0]}
        for name, ones in found.items()
    }


async def one_round(gateway: Gateway, clients: int, requests: int, body: Any) -> dict[str, float]:
    before = sum(map(cpu_s, gateway.pids))
    measured = await load(gateway.url, clients, requests, body)
    if measured.failures:
        raise SystemExit(f"bench: {measured.failures} of {requests} requests failed: {measured.example}")
    used = sum(map(cpu_s, gateway.pids)) - before
    return {
        "per_second": round(measured.rate, 1),
        "p50_ms": measured.p50_ms,
        "p99_ms": measured.p99_ms,
        "cpu_ms_per_request": 1e3 * used / requests,
        "cpu_s": used,
        "memory_mb": sum(map(memory_mb, gateway.pids)),
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the PSS, which counts pages that nginx's processes share once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def page(results: dict[str, Any], path: Path) -> str:
    rows = [["case", "gateway", "per second", "p50 ms", "p99 ms", "CPU ms/request", "memory MB"]]
    for case, found in results["cases"].items():
        for name, one in found.items():
            rows.append(
                [
                    case,
                    name,
                    f"{one['per_second']:.0f}",
                    f"{one['p50_ms']:.2f}",
                    f"{one['p99_ms']:.2f}",
                    f"{one['cpu_ms_per_request']:.3f}",
                    f"{one['memory_mb']:.0f}",
                ]
            )
    many = ", ".join(f"{name} {value:g}" for name, value in results["many_members"].items())
    return f"{table(rows)}\n\none of {MANY_MEMBERS} members removed: {many}\n\n{path}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="in which all gateways take their turn (default: 3)")
    parser.add_argument("--requests", type=int, default=2000, help="small requests of one round (default: 2000)")
    parser.add_argument("--members", type=int, help=argparse.SUPPRESS)  # serve as the members' process
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
