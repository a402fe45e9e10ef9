"""`muster sandbox`: run untrusted code, isolated, on this machine."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import click
from rich.console import Console
from rich.table import Table

from muster.cli.command_group import CommandGroup
from muster.cli.json_output import json_option
from muster.cli.units import size_value, time_value
from muster.exit_codes import TIMED_OUT
from muster.sandbox.client.loadgen import Measured, cell, load, program
from muster.sandbox.client.retry_rules import SandboxRefused, SandboxUnavailable
from muster.sandbox.client.sync_client import Client, resolve_endpoints
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.isolation import Level
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.run_once import run_once
from muster.sandbox.server import SandboxServer, serve
from muster.sandbox.settings import GATEWAYS, ISOLATION, SandboxSettings, SettingsError, usable_cores

CLUSTER_LOAD_TIMEOUT_S = 60.0  # the endpoint queries every node; 10,000 nodes take about 20 s
BUSIEST_SHOWN = 3


@click.group(cls=CommandGroup)
def sandbox() -> None:
    """Run untrusted code on this machine, isolated: a server, one program, a benchmark.

    \b
    muster sandbox serve                        serve http://127.0.0.1:6000, at the strongest isolation available
    muster sandbox exec -c 'print(6 * 7)'       run one program
    muster sandbox bench                        measure the throughput of this machine
    muster sandbox load                         show the load of every node and its busiest workers
    """


_SETTINGS_OPTIONS = (
    click.option(
        "--isolation",
        type=click.Choice(ISOLATION),
        help="Minimum isolation level; gvisor needs runsc. Default: auto, the strongest here but gvisor.",
    ),
    click.option("--network/--no-network", default=None, help="Allow programs to use the network. Default: no."),
    click.option(
        "--memory",
        "memory_mb",
        callback=size_value,
        metavar="SIZE",
        help="Maximum memory of a program, in MB or as 4G. Default: 4096.",
    ),
    click.option(
        "--memory-total",
        "memory_total_mb",
        callback=size_value,
        metavar="SIZE",
        help="Maximum memory of all programs, in MB or as 4G. Default: four fifths of the machine's.",
    ),
    click.option(
        "--memory-reserve",
        "memory_reserve_mb",
        callback=size_value,
        metavar="SIZE",
        help="End the largest program if less memory is left, in MB or as 4G. Default: a twentieth, at most 2048.",
    ),
    click.option(
        "--processes",
        type=int,
        metavar="N",
        help="Maximum number of processes and threads of one program. Default: 128.",
    ),
    click.option(
        "--scratch",
        "scratch_mb",
        callback=size_value,
        metavar="SIZE",
        help="Maximum scratch space of a program, in MB or as 4G. Default: 512.",
    ),
    click.option(
        "--file-size",
        "file_mb",
        callback=size_value,
        metavar="SIZE",
        help="Maximum size of a file, in MB or as 4G. Default: 512.",
    ),
    click.option(
        "--open-files", type=int, metavar="N", help="Maximum number of open files of a process. Default: 1024."
    ),
    click.option("--python", metavar="PATH", help="Interpreter for Python programs. Default: this one."),
    click.option(
        "--preload",
        multiple=True,
        metavar="MODULE[?]",
        help="Python module to import in advance (?: if installed). Repeatable. Default: numpy?, sympy?, IPython?.",
    ),
    click.option("--read-only", multiple=True, metavar="PATH", help="Further path that programs may read. Repeatable."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable of programs. Repeatable."),
    click.option("--scratch-dir", metavar="DIR", help="Directory for scratch space. Default: TMPDIR or /tmp."),
)


def _settings_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of commands that start a sandbox; they are named as the fields of SandboxSettings."""
    for option in reversed(_SETTINGS_OPTIONS):
        command = option(command)
    return command


def _settings(given: dict[str, Any]) -> SandboxSettings:
    """Return the given settings over the defaults; raise UsageError for mistakes."""
    known = {one.name for one in fields(SandboxSettings)}
    values = {name: value for name, value in given.items() if name in known and value not in (None, ())}
    if "env" in values:
        pairs = [text.partition("=") for text in values["env"]]
        if bad := [name for name, sign, _ in pairs if not sign]:
            raise click.UsageError(f"--env {bad[0]}: allowed is NAME=VALUE")
        values["env"] = {name: value for name, _, value in pairs}
    try:
        return SandboxSettings.from_json(values)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


@sandbox.command("serve")
@click.option(
    "--port",
    type=int,
    metavar="PORT",
    help="Port of the endpoint for clients, on loopback; 0: any free one. Default: 6000.",
)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Second endpoint, for other nodes; it requires --token-file. Default: none.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="File with the token of --listen. Default: none.",
)
@click.option(
    "--members-file", metavar="FILE", help="File that lists all sandboxes to serve to clients. Default: only this one."
)
@click.option("--single-node", is_flag=True, default=None, help="Serve this node only, whatever --members-file lists.")
@click.option("--gateway", type=click.Choice(GATEWAYS), hidden=True)  # without effect: see settings.GATEWAYS
@click.option(
    "--workers-min", type=int, metavar="N", help="Number of workers kept warm. Default: the cores, at least 2."
)
@click.option(
    "--workers-max",
    type=int,
    metavar="N",
    help="Maximum number of concurrent programs; a quarter more if short. Default: twice the cores, at least 4.",
)
@click.option(
    "--idle",
    "idle_s",
    callback=time_value,
    metavar="TIME",
    help="Time until an extra idle worker ends, in seconds or as 1m. Default: 60.",
)
@click.option("--queue", type=int, metavar="N", help="Maximum number of queued requests. Default: 1024.")
@click.option(
    "--queue-wait",
    "queue_wait_s",
    callback=time_value,
    metavar="TIME",
    help="Maximum time in the queue, in seconds or as 1m. Default: 3.",
)
@click.option(
    "--max-timeout",
    "max_timeout_s",
    callback=time_value,
    metavar="TIME",
    help="Maximum timeout of a request, in seconds or as 1h. Default: 3600.",
)
@click.option(
    "--max-output",
    type=int,
    metavar="CHARACTERS",
    help="Maximum length of stdout and of stderr, in characters. Default: 16777216.",
)
@click.option(
    "--sessions", "sessions_max", type=int, metavar="N", help="Maximum number of ipython sessions. Default: 256."
)
@click.option(
    "--session-idle",
    "session_idle_s",
    callback=time_value,
    metavar="TIME",
    help="Time until idle sessions end, in seconds or as 1h. Default: 3600.",
)
@click.option(
    "--session-memory",
    "session_memory_mb",
    callback=size_value,
    metavar="SIZE",
    help="Maximum memory of all sessions together, in MB or as 4G. Default: half of the machine's.",
)
@click.option(
    "--shared-scratch", is_flag=True, default=None, help="Share scratch space among calls without a workspace."
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="JSON file to write when the sandbox is ready. Default: none.",
)
@_settings_options
def serve_(token_file: str | None, **given: Any) -> int:
    """Serve NeMo-Skills' /execute, SandboxFusion's /run_code, /batch, /health and /metrics until SIGTERM."""
    token = Path(token_file).read_text().strip() if token_file else None
    if token_file and os.stat(token_file).st_mode & 0o077:
        click.echo(f"warning: other users may read {token_file}: chmod 600 {token_file}", err=True)
    return asyncio.run(serve(_settings({**given, "token": token}), _announce))


def _announce(server: SandboxServer) -> None:
    facts = server.facts()
    between = f", for other nodes on port {facts['listen_port']}" if facts["listen_port"] else ""
    gateway = f", for all members by {facts['gateway']}" if facts["gateway"] else ""
    click.echo(f"sandbox on {facts['url']}{gateway}{between}: {_isolation_text(facts['isolation'])}")


def _isolation_text(isolation: dict[str, Any]) -> str:
    why = f"; not more: {'; '.join(isolation['why_not_more'])}" if isolation["why_not_more"] else ""
    return f"isolation {isolation['level']} ({', '.join(isolation['mechanisms'])}){why}"


@sandbox.command("exec")
@click.argument("file", type=click.File(), required=False)
@click.option("-c", "code", metavar="CODE", help="Text of the program. Default: read FILE.")
@click.option("--language", default="python", show_default=True, help="Language of the program.")
@click.option(
    "--timeout",
    callback=time_value,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time until the program is killed, in seconds or as 10m.",
)
@click.option("--stdin", type=click.File("rb"), help="Standard input of the program. Default: empty.")
@click.option("--url", help="URL of a running sandbox. Default: start one for this program.")
@_settings_options
def exec_(file: Any, code: str | None, url: str | None, stdin: Any, **given: Any) -> int:
    """Run one program from FILE (or -c) in a sandbox; print its output and exit with its code."""
    if (file is None) == (code is None):
        raise click.UsageError("give either FILE or -c CODE")
    text, data = code if code is not None else file.read(), stdin.read() if stdin else b""
    language, timeout = given.pop("language"), given.pop("timeout")
    try:
        if url is not None:
            return _run_remotely(url, text, language, timeout, data)
        settings = replace(_settings({"preload": (), **given}), workers_min=1, workers_max=1)
        out, err, exit_code = asyncio.run(run_once(settings, text, language, timeout, data))
    except (SandboxError, SandboxRefused, SandboxUnavailable, ValueError) as error:
        raise click.ClickException(str(error)) from None
    sys.stdout.buffer.write(out)
    sys.stderr.buffer.write(err)
    return exit_code


def _run_remotely(url: str, code: str, language: str, timeout: float, stdin: bytes) -> int:
    with Client(url) as client:
        sent: dict[str, Any] = {"std_input": stdin.decode("utf-8", "replace"), "max_output_characters": 1 << 20}
        result = client.execute(code, language, timeout, **sent)
    click.echo(result.stdout, nl=False)
    click.echo(result.stderr, nl=False, err=True)
    return 0 if result.completed else TIMED_OUT if result.status == "timeout" else 1


@sandbox.command("bench")
@click.option("--url", help="URL of a running sandbox. Default: start one.")
@click.option("--clients", type=click.IntRange(1), default=8, show_default=True, help="Number of concurrent clients.")
@click.option(
    "--requests", type=click.IntRange(10), default=500, show_default=True, help="Number of requests of each kind."
)
@json_option("Print the figures as JSON.")
@_settings_options
def bench(url: str | None, clients: int, requests: int, as_json: bool, **given: Any) -> int:
    """Measure rate and latency of programs, fresh sessions and cells of warm sessions."""
    settings = _settings({**given, "port": 0, "workers_min": clients, "workers_max": max(clients, 2 * usable_cores())})
    try:
        level, measured = asyncio.run(_bench(url, clients, requests, settings))
    except SandboxError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(
            json.dumps({"isolation": level, **{kind: one.to_json() for kind, one in measured.items()}}, indent=1)
        )
    else:
        _print_figures(level, measured)
    return 1 if any(one.failures for one in measured.values()) else 0


async def _bench(
    url: str | None, clients: int, requests: int, settings: SandboxSettings
) -> tuple[str, dict[str, Measured]]:
    server = None
    if url is None:
        server = SandboxServer(settings)
        await server.open()
        url = server.facts()["url"]
    try:
        run = uuid.uuid4().hex[:8]
        return _level_of(server.engine if server else None), {
            "python": await load(url, clients, requests, program("print(1)")),
            "shell": await load(url, clients, requests, program("echo 1", "shell")),
            "fresh session": await load(url, clients, max(10, requests // 5), cell("print(1)", lambda n: f"{run}-{n}")),
            "warm session": await load(url, clients, 4 * requests, cell("print(1)", lambda n: f"{run}-{n % clients}")),
        }
    finally:
        if server is not None:
            await server.close()


def _level_of(box: Engine | None) -> str:
    level: Level | None = box.pool.level if box is not None else None
    return level.profile.level if level is not None else ""


def _print_figures(level: str, measured: dict[str, Measured]) -> None:
    table = Table(f"isolation {level}" if level else "", "per second", "p50", "p99", "failures")
    for kind, one in measured.items():
        table.add_row(kind, f"{one.rate:.0f}", f"{one.p50_ms:.1f} ms", f"{one.p99_ms:.1f} ms", str(one.failures))
    Console(highlight=False).print(table)


@sandbox.command("load")
@click.option(
    "--url", help="URL of an endpoint for clients. Default: that of the current run, or http://127.0.0.1:6000."
)
@json_option("Print the load as JSON.")
def load_(url: str | None, as_json: bool) -> int:
    """Show the load of every sandbox behind an endpoint: slots, queue, sessions, the busiest workers."""
    endpoint = resolve_endpoints(url)[0].rstrip("/")
    try:
        with urlopen(f"{endpoint}/cluster/load", timeout=CLUSTER_LOAD_TIMEOUT_S) as answer:
            nodes: dict[str, dict[str, Any]] = json.load(answer)["nodes"]
    except (URLError, OSError, ValueError, LookupError, http.client.HTTPException) as error:
        raise click.ClickException(
            f"no sandbox answers at {endpoint}: {error}; give the URL of a running one with --url"
        ) from None
    if as_json:
        click.echo(json.dumps(nodes, indent=1))
    else:
        Console(highlight=False).print(_load_table(nodes))
    return 1 if any("error" in one for one in nodes.values()) else 0


def _load_table(nodes: dict[str, dict[str, Any]]) -> Table:
    table = Table("node", "host", "running", "queued", "sessions", "workers", "busiest workers")
    for where, one in nodes.items():
        if "error" in one:
            table.add_row(where, "", "", "", "", "", f"no answer: {one['error']}")
            continue
        busiest = ", ".join(
            f"{worker['worker']}: {worker['busy_s']:.1f} s, {worker['executions']} runs"
            for worker in one["busiest"][:BUSIEST_SHOWN]
        )
        slots, rest = f"{one['running']}/{one['slots']}", (one["queued"], one["sessions"], one["workers"])
        table.add_row(where, one["host"], slots, *map(str, rest), busiest)
    return table
