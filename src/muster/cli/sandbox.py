"""`muster sandbox`: run foreign code, contained, on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from muster.cli.sandbox_load import load_
from muster.exit_codes import TIMED_OUT
from muster.sandbox.client.loadgen import Measured, cell, load, program
from muster.sandbox.client.retry_rules import SandboxRefused, SandboxUnavailable
from muster.sandbox.client.sync_client import Client
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.isolation import Level
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.run_once import run_once
from muster.sandbox.server import SandboxServer, serve
from muster.sandbox.settings import GATEWAYS, ISOLATION, SandboxSettings, SettingsError, usable_cores

_out = Console(highlight=False)


@click.group()
def sandbox() -> None:
    """Run foreign code on this machine, contained: a server, one program, a benchmark.

    \b
    muster sandbox serve                        http://127.0.0.1:6000, at the strongest isolation there is
    muster sandbox exec -c 'print(6 * 7)'       one program
    muster sandbox bench                        how fast is this machine?
    muster sandbox load                         who does how much? every node, its busiest workers
    """


sandbox.add_command(load_)


def _settings_options(command: Callable[..., int]) -> Callable[..., int]:
    """What a sandbox is made of, for every command that makes one. Names are those of Settings."""
    options = [
        click.option(
            "--isolation", type=click.Choice(ISOLATION), help="At least this level; auto takes the strongest."
        ),
        click.option(
            "--network/--no-network", default=None, help="Whether programs may use the network (default: no)."
        ),
        click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory of one program."),
        click.option("--processes", type=int, help="Processes and threads of one program."),
        click.option("--scratch", "scratch_mb", type=int, metavar="MB", help="What one program may write."),
        click.option("--file-size", "file_mb", type=int, metavar="MB", help="The largest file."),
        click.option("--open-files", type=int, help="Open files of a process."),
        click.option("--python", help="The interpreter that runs Python programs (default: this one)."),
        click.option("--preload", multiple=True, metavar="MODULE[?]", help="Import it ahead; ?: if there. Repeatable."),
        click.option("--read-only", multiple=True, metavar="PATH", help="Programs may read it. Repeatable."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable that programs get. Repeatable."),
        click.option("--scratch-dir", metavar="DIR", help="Where scratch is made (default: TMPDIR or /tmp)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _settings(given: dict[str, Any]) -> SandboxSettings:
    """Those given, over the defaults; mistakes end the command."""
    known = {one.name for one in fields(SandboxSettings)}
    values = {name: value for name, value in given.items() if name in known and value not in (None, ())}
    if "env" in values:
        pairs = [text.partition("=") for text in values["env"]]
        if bad := [name for name, sign, _ in pairs if not sign]:
            raise click.UsageError(f"--env {bad[0]}: NAME=VALUE is wanted")
        values["env"] = {name: value for name, _, value in pairs}
    try:
        return SandboxSettings.from_json(values)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


@sandbox.command("serve")
@click.option("--port", type=int, help="Of the endpoint for clients, on loopback (default: 6000; 0: any).")
@click.option("--listen", metavar="ADDRESS:PORT", help="A second endpoint for other nodes, which wants the token.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="Holds the token of --listen.")
@click.option("--members-file", metavar="FILE", help="Names all sandboxes; the endpoint for clients serves them all.")
@click.option("--single-node", is_flag=True, default=None, help="This node alone, whatever the members are.")
@click.option("--gateway", type=click.Choice(GATEWAYS), help="What balances over them (default: nginx if there).")
@click.option("--workers-min", type=int, help="Workers kept warm.")
@click.option("--workers-max", type=int, help="Programs at the same time.")
@click.option("--idle", "idle_s", type=float, metavar="S", help="After which a worker beyond the minimum is retired.")
@click.option("--queue", type=int, help="Requests that may wait.")
@click.option("--queue-wait", "queue_wait_s", type=float, metavar="S", help="How long each of them may.")
@click.option("--max-timeout", "max_timeout_s", type=float, metavar="S", help="The longest a program may ask for.")
@click.option("--max-output", type=int, metavar="CHARACTERS", help="The most of a stream that may be asked for.")
@click.option("--sessions", "sessions_max", type=int, help="ipython sessions at most.")
@click.option("--session-idle", "session_idle_s", type=float, metavar="S", help="After which a session is ended.")
@click.option("--session-memory", "session_memory_mb", type=int, metavar="MB", help="Of all sessions together.")
@click.option("--shared-scratch", is_flag=True, default=None, help="One scratch for all calls that name no workspace.")
@click.option("--ready-file", type=click.Path(dir_okay=False), help="Written, as JSON, when the sandbox is ready.")
@_settings_options
def serve_(token_file: str | None, **given: Any) -> int:
    """Serve until SIGTERM: NeMo-Skills' /execute, SandboxFusion's /run_code, /batch, /health, /metrics."""
    token = Path(token_file).read_text().strip() if token_file else None
    return asyncio.run(serve(_settings({**given, "token": token}), _announce))


def _announce(server: SandboxServer) -> None:
    facts = server.facts()
    between = f", for other nodes on port {facts['listen_port']}" if facts["listen_port"] else ""
    gateway = f", for all members by {facts['gateway']}" if facts["gateway"] else ""
    click.echo(f"sandbox on {facts['url']}{gateway}{between}: {_level_words(facts['isolation'])}")


def _level_words(isolation: dict[str, Any]) -> str:
    why = f"; not more: {'; '.join(isolation['why_not_more'])}" if isolation["why_not_more"] else ""
    return f"isolation {isolation['level']} ({', '.join(isolation['mechanisms'])}){why}"


@sandbox.command("exec")
@click.argument("file", type=click.File(), required=False)
@click.option("-c", "code", help="The program itself.")
@click.option("--language", default="python", show_default=True)
@click.option("--timeout", type=float, default=60.0, show_default=True, metavar="S")
@click.option("--stdin", type=click.File("rb"), help="What the program reads (default: nothing).")
@click.option("--url", help="A sandbox that runs; else one is made for this program alone.")
@_settings_options
def exec_(file: Any, code: str | None, url: str | None, stdin: Any, **given: Any) -> int:
    """Run one program of FILE (or -c) in the sandbox; its output and exit code are passed on."""
    if (file is None) == (code is None):
        raise click.UsageError("either FILE or -c CODE is wanted")
    text, data = code if code is not None else file.read(), stdin.read() if stdin else b""
    language, timeout = given.pop("language"), given.pop("timeout")
    try:
        if url is not None:
            return _there(url, text, language, timeout, data)
        settings = replace(_settings({"preload": (), **given}), workers_min=1, workers_max=1)
        out, err, exit_code = asyncio.run(run_once(settings, text, language, timeout, data))
    except (SandboxError, SandboxRefused, SandboxUnavailable, ValueError) as error:
        raise click.ClickException(str(error)) from None
    sys.stdout.buffer.write(out)
    sys.stderr.buffer.write(err)
    return exit_code


def _there(url: str, code: str, language: str, timeout: float, stdin: bytes) -> int:
    with Client(url) as client:
        sent: dict[str, Any] = {"std_input": stdin.decode("utf-8", "replace"), "max_output_characters": 1 << 20}
        result = client.execute(code, language, timeout, **sent)
    click.echo(result.stdout, nl=False)
    click.echo(result.stderr, nl=False, err=True)
    return 0 if result.completed else TIMED_OUT if result.status == "timeout" else 1


@sandbox.command("bench")
@click.option("--url", help="A sandbox that runs; else one is started.")
@click.option("--clients", type=click.IntRange(1), default=8, show_default=True)
@click.option("--requests", type=click.IntRange(10), default=500, show_default=True, help="Of each kind.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_settings_options
def bench(url: str | None, clients: int, requests: int, as_json: bool, **given: Any) -> int:
    """Measure programs, fresh sessions and cells of warm sessions."""
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
        _print(level, measured)
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
        return _level_of(server.box if server else None), {
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


def _print(level: str, measured: dict[str, Measured]) -> None:
    table = Table(f"isolation {level}" if level else "", "per second", "p50", "p99", "failures")
    for kind, one in measured.items():
        table.add_row(kind, f"{one.rate:.0f}", f"{one.p50_ms:.1f} ms", f"{one.p99_ms:.1f} ms", str(one.failures))
    _out.print(table)
