"""`muster ui`: serve the web page on loopback."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import click

from muster.cli.run_argument import runs_dir_option
from muster.runs.tunnels import tunnel_command
from muster.web.auth import Auth
from muster.web.handlers import Handlers
from muster.web.run_cache import RunCache
from muster.web.server import UiServer


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: any free port.")
@runs_dir_option
@click.option(
    "--metrics-token",
    "token_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with a bearer token that admits other clients to /metrics. Default: only admitted browsers.",
)
def ui(port: int, runs_dir: Path | None, token_file: Path | None) -> None:
    """Serve a web page on this host's loopback: runs, live, with timelines and logs, and a button to stop a run.

    The command prints a link that admits one browser, once; Enter prints another. Ctrl-C ends the server.
    """
    try:
        server = UiServer(port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on port {port}: {error.strerror}; give another with --port, or none for any free port"
        ) from error
    with server:
        token = token_file.read_text().strip() if token_file else None
        auth = Auth(f"muster-{server.port}", token)
        server.handlers = Handlers(auth, RunCache(runs_dir))
        if "SSH_CONNECTION" in os.environ:
            click.echo(f"on your own machine first:  {tunnel_command(server.port)}")
        _print_link(server, auth)
        threading.Thread(target=_print_link_per_line, args=(server, auth), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo()


def _print_link(server: UiServer, auth: Auth) -> None:
    click.echo(f"http://127.0.0.1:{server.port}/enter?token={auth.new_link()}")


def _print_link_per_line(server: UiServer, auth: Auth) -> None:
    """Print a new link at every Enter, for another browser or one that lost its cookie."""
    while sys.stdin.isatty() and sys.stdin.readline():
        _print_link(server, auth)
