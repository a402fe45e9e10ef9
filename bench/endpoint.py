"""Measure the endpoint of a pool: overhead, balance, streaming, and what fails while the pool changes.

direct      clients send to the engines in turn, without anything in between
muster      the proxy of an endpoint, as it runs on a node
nginx       one worker, round robin, kept connections, no buffering (omitted where nginx is not installed)
ray serve   the proxy of Ray Serve; its replicas are the same engine (omitted where ray[serve] is not installed)

Four engines, each a process with OpenAI's completions as a stream of events and a health response, and 64 clients. All
take their turn within one run; figures are medians of the rounds.

overhead    median latency of a request of 100 ms, minus that of `direct`, at 1 and at 64 clients
streaming   24 tokens, one every 30 ms: delay of a token from the engine to the client, and the share of reads that had
            exactly one token
balance     requests of 4 to 28 tokens: the largest deviation of an engine's share of the tokens from a quarter
changes     the same requests, while one engine is killed, one drained, one added, and the weights change on all: which
            requests fail, and whether their errors name the killed engine
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interrupts import INTERRUPTED, leave_on_signals
from report import Goal, goals_table, machine, save, table

from muster.sandbox.http import client, codec
from muster.sandbox.http.codec import HttpResponse

SOURCE = Path(__file__).resolve().parents[1] / "src"
TOKEN = "bench"
ENGINES, CLIENTS = 4, 64
REQUEST_S = 0.1
TOKENS, TOKEN_S = 24, 0.03
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
START_S = 60.0


def main() -> int:
    options = _options()
    if options.engine:
        asyncio.run(serve_engine())
        return 0
    if options.serve:
        serve_with_ray(options.serve)
        return 0
    leave_on_signals()
    try:
        results = asyncio.run(measure(options.rounds, options.changes_s))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    path = save("endpoint.json", results)
    print(page(results, path))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--changes-s", type=float, default=12.0, help="seconds of load while the pool changes")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


# -- engines ----------------------------------------------------------------------------------------------------------


async def serve_engine() -> None:
    """Serve completions on a free port, print it, and serve until stdin is closed."""
    stats = {"requests": 0, "tokens": 0, "outstanding": 0, "weights_version": 1}

    async def answer(writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
        if path == "/health":
            writer.write(codec.response_bytes(HttpResponse(200, {"status": "ok", **stats}), False))
            return
        request = json.loads(body)
        if path == "/weights":
            stats["weights_version"] = request["version"]
            writer.write(codec.response_bytes(HttpResponse(200, {}), False))
            return
        stats["requests"] += 1
        stats["outstanding"] += 1
        try:
            if not request.get("stream"):
                await asyncio.sleep(request["seconds"])
                writer.write(codec.response_bytes(HttpResponse(200, {"choices": [{"text": "x" * 200}]}), False))
                return
            writer.write(codec.stream_head_bytes(HttpResponse(200, "", {"content-type": "text/event-stream"}), False))
            for _ in range(request["max_tokens"]):
                await asyncio.sleep(TOKEN_S)
                stats["tokens"] += 1
                event = {"choices": [{"text": "token "}], "sent": time.monotonic(), "engine": os.getpid()}
                writer.write(codec.chunk_bytes(f"data: {json.dumps(event)}\n\n".encode()))
            writer.write(codec.chunk_bytes(b"data: [DONE]\n\n") + codec.LAST_CHUNK)
        finally:
            stats["outstanding"] -= 1

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                head, is_last = codec.parse_request_head((await reader.readuntil(codec.HEAD_END))[:-4])
                body = await reader.readexactly(codec.request_body_length(head.headers) or 0)
                await answer(writer, head.path, body)
                await writer.drain()
                if is_last:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


class EngineProcess:
    """An engine in a process, which a benchmark may kill."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--engine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    async def stats(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((await exchange(self.url, "/health", {}))[1])
        return found

    async def set_weights(self, version: int) -> None:
        await exchange(self.url, "/weights", {"version": version})

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


# -- proxies ----------------------------------------------------------------------------------------------------------


class Direct:
    """Sends to the engines in turn."""

    def __init__(self, engines: list[EngineProcess]) -> None:
        self._engines, self._next = engines, 0

    @property
    def url(self) -> str:
        self._next += 1
        return self._engines[self._next % len(self._engines)].url


class MusterEndpoint:
    """The proxy as a node runs it; the benchmark writes the list of replicas, which an agent does in a run."""

    def __init__(self, place: str) -> None:
        self._members, self._version = Path(place, "members.json"), 0
        settings = {"name": "bench", "port": 0, "token": TOKEN, "members_file": str(self._members), "health": "/health"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "muster.endpoint", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({**settings, "interval": 0.5}).encode())
        self._process.stdin.close()
        self.url = self._process.stdout.readline().decode().split()[-1]
        self.pid = self._process.pid

    async def set_engines(self, engines: list[EngineProcess]) -> None:
        self._version += 1
        new = self._members.with_suffix(".new")
        new.write_text(json.dumps({"version": self._version, "endpoints": [engine.url for engine in engines]}))
        new.rename(self._members)
        end = time.monotonic() + START_S
        while json.loads((await exchange(self.url, "/.muster/members", {}))[1])["version"] != self._version:
            if time.monotonic() > end:
                raise SystemExit("bench: the proxy did not read its members")
            await asyncio.sleep(0.05)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(START_S)


class Nginx:
    """nginx with round robin; a change of the list is a reload."""

    def __init__(self, place: str, port: int) -> None:
        self._place, self._port = place, port
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    async def set_engines(self, engines: list[EngineProcess]) -> None:
        assert NGINX is not None
        Path(self._place, "nginx.conf").write_text(self._configuration(engines))
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.3)  # it does not report the end of a reload
            return
        self._process = subprocess.Popen([NGINX, "-p", self._place, "-e", "stderr", "-c", f"{self._place}/nginx.conf"])
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError, EOFError):
                await exchange(self.url, "/health", {})
                return
            if time.monotonic() > end:
                raise SystemExit("bench: nginx did not start")
            await asyncio.sleep(0.05)

    def _configuration(self, engines: list[EngineProcess]) -> str:
        servers = "\n".join(f"server {engine.address};" for engine in engines)
        user = "user root root;" if os.getuid() == 0 else ""
        temporary = " ".join(
            f"{name}_temp_path {self._place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""{user} daemon off; worker_processes 1; pid {self._place}/pid; error_log {self._place}/errors;
events {{ worker_connections 4096; }}
http {{
    access_log off; {temporary} keepalive_requests 1000000;
    upstream engines {{ {servers} keepalive 128; }}
    server {{
        listen 127.0.0.1:{self._port} backlog=4096;
        location / {{
            proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_S)


# -- clients ----------------------------------------------------------------------------------------------------------


async def exchange(url: str, path: str, body: Any) -> tuple[int, bytes]:
    """Send one request on a new connection and return status and body."""
    reader, writer = await client.connect(url, START_S)
    try:
        writer.write(_request(path, body))
        head = await client.read_head(reader)
        return head.status, await reader.readexactly(head.length)
    finally:
        writer.close()


def _request(path: str, body: Any) -> bytes:
    headers = {"Host": "bench", "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    return codec.request_bytes("POST", path, headers, json.dumps(body).encode())


@dataclass
class Seen:
    """What the clients of one round have seen."""

    latencies_s: list[float] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)  # of tokens
    reads: int = 0
    single_reads: int = 0  # with exactly one token
    requests: int = 0
    tokens: Counter[int] = field(default_factory=Counter)  # by the engine's process
    failures: list[str] = field(default_factory=list)


class BenchClient:
    """One client, with kept connections."""

    def __init__(self, target: Any, seen: Seen) -> None:
        self._target, self._seen = target, seen
        self._idle = client.IdleConnections()

    async def send(self, body: Any) -> None:
        self._seen.requests += 1
        url, began = self._target.url, time.monotonic()
        streams = None
        try:
            streams = self._idle.acquire(url) or await client.connect(url, START_S)
            streams[1].write(_request("/v1/completions", body))
            head = await client.read_head(streams[0])
            if head.status != 200:
                data = await streams[0].readexactly(head.length) if not head.is_chunked else b""
                self._seen.failures.append(f"{head.status} {data.decode(errors='replace')}")
            elif head.is_chunked:
                await self._read_tokens(streams[0], body["max_tokens"])
            else:
                await streams[0].readexactly(head.length)
                self._seen.latencies_s.append(time.monotonic() - began)
            self._idle.release(url, streams)
        except (OSError, EOFError) as error:
            self._seen.failures.append(str(error) or type(error).__name__)
            if streams is not None:
                streams[1].close()

    async def _read_tokens(self, reader: asyncio.StreamReader, expected: int) -> None:
        """Read a stream of events; raise EOFError if it is cut off, with the error that it had before."""
        found, error = 0, ""
        try:
            async for data in client.read_chunks(reader):
                now, tokens = time.monotonic(), data.count(b'"sent"')
                found += tokens
                self._seen.reads += tokens > 0
                self._seen.single_reads += tokens == 1
                for line in data.split(b"\n"):
                    if b'"sent"' in line:
                        event = json.loads(line[len(b"data: ") :])
                        self._seen.delays_s.append(now - event["sent"])
                        self._seen.tokens[event["engine"]] += 1
                    elif b'"error"' in line:
                        error = line.decode(errors="replace")
        except (OSError, EOFError) as cut:
            raise EOFError(error or str(cut) or type(cut).__name__) from None
        if found != expected:
            raise EOFError(f"{found} of {expected} tokens, without an error")

    def close(self) -> None:
        self._idle.close()


async def load(target: Any, clients: int, bodies: list[Any], until: float | None = None) -> Seen:
    """Send the bodies, divided among the clients; with `until`, again and again until that time."""
    seen = Seen()
    made = [BenchClient(target, seen) for _ in range(clients)]

    async def work(number: int) -> None:
        own = bodies[number::clients]
        while True:
            for body in own:
                if until is not None and time.monotonic() >= until:
                    return
                await made[number].send(body)
            if until is None:
                return

    await asyncio.gather(*map(work, range(clients)))
    for one in made:
        one.close()
    return seen


def varied_bodies(count: int) -> list[Any]:
    choose = random.Random(4)
    return [{"stream": True, "max_tokens": choose.randint(4, 28)} for _ in range(count)]


# -- Ray Serve --------------------------------------------------------------------------------------------------------


class RayServe:
    """Ray Serve in a process of its own: it starts Ray, and its replicas are engines."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        if not any(b"ready" in line for line in self._process.stdout):
            raise SystemExit("bench: Ray Serve did not start")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(START_S)


def serve_with_ray(port: int) -> None:
    """Run an application of Ray Serve until stdin is closed."""
    import ray
    from ray import serve
    from starlette.responses import JSONResponse, StreamingResponse

    @serve.deployment(num_replicas=ENGINES, max_ongoing_requests=CLIENTS, ray_actor_options={"num_cpus": 0})
    class ServedEngine:
        async def __call__(self, request: Any) -> Any:
            body = await request.json()
            if not body.get("stream"):
                await asyncio.sleep(body["seconds"])
                return JSONResponse({"choices": [{"text": "x" * 200}]})
            return StreamingResponse(self.tokens(body["max_tokens"]), media_type="text/event-stream")

        async def tokens(self, count: int) -> AsyncIterator[str]:
            for _ in range(count):
                await asyncio.sleep(TOKEN_S)
                event = {"choices": [{"text": "token "}], "sent": time.monotonic(), "engine": os.getpid()}
                yield f"data: {json.dumps(event)}\n\n"

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(ServedEngine.bind())
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


# -- measuring --------------------------------------------------------------------------------------------------------


async def measure(rounds: int, changes_s: float) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "load_before": round(os.getloadavg()[0], 2), "rounds": rounds}
    with contextlib.ExitStack() as stack:
        engines = [EngineProcess() for _ in range(ENGINES)]
        for engine in engines:
            stack.callback(engine.close)
        targets = await start_proxies(stack, engines)
        if importlib.util.find_spec("starlette") is not None:
            targets["ray serve"] = RayServe()
            stack.callback(targets["ray serve"].close)
        steady: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
        for _ in range(rounds):
            for name, target in targets.items():
                steady[name].append(await steady_round(target))
    results["steady"] = {name: medians(found) for name, found in steady.items()}
    direct = results["steady"]["direct"]
    for found in results["steady"].values():
        for key in ("latency_1_ms", "latency_64_ms"):
            found[f"overhead_{key[8:]}"] = round(found[key] - direct[key], 3)
    results["changes"] = {}
    for name in ("muster", "nginx") if NGINX else ("muster",):
        results["changes"][name] = await changing_pool(name, changes_s)
    return results


async def start_proxies(stack: contextlib.ExitStack, engines: list[EngineProcess]) -> dict[str, Any]:
    targets: dict[str, Any] = {"direct": Direct(engines)}
    for name in ("muster", "nginx") if NGINX else ("muster",):
        targets[name] = await start_proxy(stack, name, engines)
    return targets


async def start_proxy(stack: contextlib.ExitStack, name: str, engines: list[EngineProcess]) -> Any:
    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-endpoint-"))
    os.chmod(place, 0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    proxy = MusterEndpoint(place) if name == "muster" else Nginx(place, port)
    stack.callback(proxy.close)
    await proxy.set_engines(engines)
    return proxy


async def steady_round(target: Any) -> dict[str, float]:
    whole = {"seconds": REQUEST_S}
    one = await load(target, 1, [whole] * 20)
    many = await load(target, CLIENTS, [whole] * (4 * CLIENTS))
    stream = await load(target, CLIENTS, [{"stream": True, "max_tokens": TOKENS}] * (2 * CLIENTS))
    varied = await load(target, CLIENTS, varied_bodies(6 * CLIENTS))
    if failures := one.failures + many.failures + stream.failures + varied.failures:
        raise SystemExit(f"bench: {len(failures)} requests failed: {failures[0]}")
    mean = sum(varied.tokens.values()) / ENGINES
    counts = [*varied.tokens.values(), *[0] * (ENGINES - len(varied.tokens))]
    return {
        "latency_1_ms": 1e3 * statistics.median(one.latencies_s),
        "latency_64_ms": 1e3 * statistics.median(many.latencies_s),
        "token_delay_ms": 1e3 * statistics.median(stream.delays_s),
        "single_token_reads": stream.single_reads / stream.reads,
        "imbalance": max(abs(count - mean) for count in counts) / mean,
    }


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in found), 4) for key in found[0]}


async def changing_pool(name: str, seconds: float) -> dict[str, Any]:
    """Send requests while the pool changes; return which failed."""
    with contextlib.ExitStack() as stack:
        engines = [EngineProcess() for _ in range(ENGINES + 1)]
        for engine in engines:
            stack.callback(engine.close)
        killed, drained, *others = engines
        proxy = await start_proxy(stack, name, engines[:ENGINES])
        until = time.monotonic() + seconds
        loading = asyncio.ensure_future(load(proxy, CLIENTS, varied_bodies(16 * CLIENTS), until))
        await asyncio.sleep(seconds / 5)
        in_flight = (await killed.stats())["outstanding"]
        killed.kill()
        await asyncio.sleep(seconds / 5)
        await proxy.set_engines(others[:-1])  # without the killed and the drained one
        await asyncio.sleep(seconds / 5)
        left = (await drained.stats())["outstanding"]
        await proxy.set_engines(others)
        await asyncio.sleep(seconds / 5)
        for engine in others:
            await engine.set_weights(2)
        seen = await loading
        new = (await others[-1].stats())["requests"]
        await asyncio.sleep(1.0)  # two intervals of checks
        version = await weights_version(proxy)
    named = sum(killed.address in failure for failure in seen.failures)
    return {
        "requests": seen.requests,
        "in_flight_at_killed": in_flight,
        "failed": len(seen.failures),
        "failed_naming_the_killed": named,
        "outstanding_at_drained": left,
        "requests_at_added": new,
        "weights_version": version,
        "example": seen.failures[0][:300] if seen.failures else "",
    }


async def weights_version(proxy: Any) -> str | None:
    """Return the version that a response names."""
    reader, writer = await client.connect(proxy.url, START_S)
    try:
        writer.write(_request("/v1/completions", {"seconds": 0}))
        head, _ = await client.read_response(reader)
        return head.headers.get("x-muster-weights-version")
    finally:
        writer.close()


# -- results ----------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any], path: Path) -> str:
    rows = [["", "overhead 1", "overhead 64", "token delay", "single tokens", "imbalance"]]
    for name, one in results["steady"].items():
        overheads = [f"{one['overhead_1_ms']:.2f} ms", f"{one['overhead_64_ms']:.2f} ms"]
        shares = [f"{one['single_token_reads']:.1%}", f"{one['imbalance']:.1%}"]
        rows.append([name, *overheads, f"{one['token_delay_ms']:.2f} ms", *shares])
    changes = [["changes", "requests", "in flight at the killed", "failed", "naming the killed"]]
    keys = ("requests", "in_flight_at_killed", "failed", "failed_naming_the_killed")
    changes += [[name, *(str(one[key]) for key in keys)] for name, one in results["changes"].items()]
    steady, changed = results["steady"]["muster"], results["changes"]["muster"]
    goals = [
        Goal("median overhead, 64 clients", steady["overhead_64_ms"], 1.0, " ms", below=True),
        Goal("imbalance", steady["imbalance"], 0.1),
        Goal("reads with several tokens", 1 - steady["single_token_reads"], 0.01),
        Goal("failures that do not name the killed", changed["failed"] - changed["failed_naming_the_killed"], 0),
    ]
    return f"{table(rows)}\n\n{table(changes)}\n\n{goals_table(goals)}\n\nwritten to {path}"


if __name__ == "__main__":
    sys.exit(main())
