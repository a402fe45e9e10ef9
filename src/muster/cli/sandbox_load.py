"""`muster sandbox load`: who does how much, on every node behind an endpoint."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import click
from rich.console import Console
from rich.table import Table

from muster.sandbox.client.sync_client import given_or_found

PATIENCE_S = 60.0  # the endpoint asks every node: 10,000 take it some 20 s
BUSIEST = 3
_out = Console(highlight=False)


@click.command("load")
@click.option("--url", help="An endpoint for clients (default: of the run that this is in, or http://127.0.0.1:6000).")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def load_(url: str | None, as_json: bool) -> int:
    """Show the load of every sandbox behind an endpoint: slots, queue, sessions, the busiest workers."""
    endpoint = given_or_found(url)[0].rstrip("/")
    try:
        with urlopen(f"{endpoint}/cluster/load", timeout=PATIENCE_S) as answer:
            nodes: dict[str, dict[str, Any]] = json.load(answer)["nodes"]
    except (URLError, OSError, ValueError, LookupError, http.client.HTTPException) as error:
        raise click.ClickException(f"no sandbox answers at {endpoint}: {error}") from None
    if as_json:
        click.echo(json.dumps(nodes, indent=1))
    else:
        _out.print(_table(nodes))
    return 1 if any("error" in one for one in nodes.values()) else 0


def _table(nodes: dict[str, dict[str, Any]]) -> Table:
    table = Table("node", "host", "running", "queued", "sessions", "workers", "busiest workers")
    for where, one in nodes.items():
        if "error" in one:
            table.add_row(where, "", "", "", "", "", f"no answer: {one['error']}")
            continue
        busiest = ", ".join(
            f"{worker['worker']}: {worker['busy_s']:.1f} s, {worker['executions']} runs"
            for worker in one["busiest"][:BUSIEST]
        )
        slots, rest = f"{one['running']}/{one['slots']}", (one["queued"], one["sessions"], one["workers"])
        table.add_row(where, one["host"], slots, *map(str, rest), busiest)
    return table
