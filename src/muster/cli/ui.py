"""`muster ui`: the web page on loopback."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import click

from muster.runs.tunnels import tunnel_command
from muster.web.auth import Auth
from muster.web.handlers import Handlers
from muster.web.run_cache import RunCache
from muster.web.server import UiServer


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Listen here. Default: any free port.")
@click.option("--runs-dir", type=click.Path(path_type=Path), help="Show the runs in this directory only.")
@click.option(
    "--metrics-token",
    "token_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Let whoever shows the token in FILE (as a bearer token) read /metrics.",
)
def ui(port: int, runs_dir: Path | None, token_file: Path | None) -> None:
    """Show runs on a web page of this host's loopback: live, with their timelines and logs, and a button to stop them.

    Prints a link that lets one browser in, once; Enter prints another. Interrupt it to end it.
    """
    try:
        server = UiServer(port)
    except OSError as error:
        raise click.ClickException(f"port {port} cannot be listened on: {error.strerror}") from error
    with server:
        token = token_file.read_text().strip() if token_file else None
        auth = Auth(f"muster-{server.port}", token)
        server.answers = Handlers(auth, RunCache(runs_dir))
        if "SSH_CONNECTION" in os.environ:
            click.echo(f"on your own machine first:  {tunnel_command(server.port)}")
        _print_link(server, auth)
        threading.Thread(target=_more_links, args=(server, auth), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo()


def _print_link(server: UiServer, auth: Auth) -> None:
    click.echo(f"http://127.0.0.1:{server.port}/enter?token={auth.new_link()}")


def _more_links(server: UiServer, auth: Auth) -> None:
    """For another browser, or one that has forgotten its cookie."""
    while sys.stdin.isatty() and sys.stdin.readline():
        _print_link(server, auth)
