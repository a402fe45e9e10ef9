"""`muster torchrun-coordinator`: coordinate a `muster torchrun` job from a host without workers."""

from __future__ import annotations

import socket

import click

from muster.agent.node_log import log_to_stderr
from muster.cli.torchrun import require_torch


@click.command("torchrun-coordinator")
@click.option("--nnodes", required=True, metavar="N|MIN:MAX", help="Number of nodes, as given to the nodes.")
@click.option(
    "--spares",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="K",
    help="Number of spares, as given to the nodes.",
)
@click.option(
    "--rdzv-endpoint",
    metavar="HOST:PORT",
    help="Endpoint, as given to the nodes; HOST is this host. Default: that of the Slurm step.",
)
@click.option("--rdzv-id", help="Id of the job, as given to the nodes. Default: that of the Slurm step.")
@click.option(
    "--last-call",
    type=float,
    metavar="S",
    help="Seconds that a round with enough nodes waits for the others. Default: 5; with MIN:MAX 30.",
)
@click.option(
    "--timeout", type=float, metavar="S", help="Seconds that each round waits for enough nodes. Default: 900."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with the secret that connections must prove to know. Default: MUSTER_TORCH_TOKEN, else the job's id.",
)
def torchrun_coordinator(
    nnodes: str, spares: int, rdzv_endpoint: str | None, rdzv_id: str | None, **conf: float | str | None
) -> int:
    """Coordinate a job of `muster torchrun` without taking part in it: no worker runs here.

    The loss of a node then never includes the coordinator. For a host that is not one of the job's, such as a login or
    CPU node, or the first task of a step:

    \b
      muster torchrun-coordinator --rdzv-endpoint $(hostname):29400 --rdzv-id 4711 --nnodes 4 --spares 1

    The nodes run `muster torchrun`, or torchrun with --rdzv-backend muster, with the same endpoint, id and numbers. In
    a Slurm step endpoint and id need not be given. The exit code is the job's. The loss of this process ends the job:
    nodes with --failover-dir coordinate themselves and do not use it.
    """
    require_torch()
    # Deferred: these modules import torch, which takes seconds and is optional.
    from muster.torch.coordinator import coordinate
    from muster.torch.handler import open_store
    from muster.torch.launch_env import launch_environment
    from muster.torch.launcher import parse_nnodes
    from muster.torch.settings import parse_settings

    log_to_stderr(socket.gethostname())
    place = launch_environment()
    try:
        given = {"spares": spares, **{name: value for name, value in conf.items() if value is not None}}
        endpoint = rdzv_endpoint or place.endpoint or ""
        settings = parse_settings(endpoint, rdzv_id or place.run_id or "none", parse_nnodes(nnodes), given, place)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    try:
        outcome = coordinate(settings, lambda: open_store(settings), _announce)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    _print(f"the job {outcome.state}: {outcome.end_reason}")
    return outcome.exit_code


def _print(text: str) -> None:
    click.echo(f"muster: {text}", err=True)


def _announce(port: int) -> None:
    _print(f"coordinating at port {port}")
