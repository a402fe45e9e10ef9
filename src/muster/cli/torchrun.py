"""`muster torchrun`: torchrun, with spares."""

from __future__ import annotations

import importlib.util
import socket

import click

from muster.agent.node_log import log_to_stderr


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--spares K] [TORCHRUN'S OPTIONS]",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def torchrun(words: tuple[str, ...]) -> int:
    """Run SCRIPT under torchrun on this node, with nodes that wait to stand in for a lost one.

    To be started on every node, spares included, with the same options:

    \b
      srun muster torchrun --spares 1 --nproc-per-node 8 train.py

    Every option of torchrun's is taken (`torchrun --help`), and these:

    \b
      --spares K         nodes that wait, beyond --nnodes
      --last-call S      how long a round with enough nodes waits for the others (5)
      --token-file FILE  the secret that connections must prove; else MUSTER_TORCH_TOKEN, else the run's id
      --rdzv-conf K=V,.. further: rejoin=S (how long a job that lost too many nodes waits for new ones), timeout=S,
                         read_timeout=S, node=N, is_host=BOOL

    In a Slurm step of one task for each node these need not be given: --nnodes (the tasks without the spares),
    --rdzv-endpoint (the first node, a port made from the job's id), --rdzv-id (the step's) and --node-rank. With
    spares, --max-restarts is their number. Elsewhere --rdzv-endpoint HOST:PORT is needed.

    torchrun itself knows this rendezvous too: --rdzv-backend muster, with --rdzv-conf spares=K.

    All nodes exit with the same code: 0 when the job succeeded, on spares too; the code of the worker that failed
    first, 128+n when signal n ended it; 125 when a node or the rendezvous failed.
    """
    if not words:
        raise click.UsageError("no SCRIPT is given", click.get_current_context())
    _demand_torch()
    from muster.torch.launcher import launch

    try:
        return launch(words)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


@click.command("torchrun-coordinator")
@click.option("--nnodes", required=True, metavar="N|MIN:MAX", help="As the nodes have it.")
@click.option("--spares", type=click.IntRange(0), default=0, help="As the nodes have it.")
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help="As the nodes have it; HOST is this one.")
@click.option("--rdzv-id", help="As the nodes have it.")
@click.option("--last-call", type=float, help="Seconds that a round with enough nodes waits for the others.")
@click.option("--timeout", type=float, help="Seconds for enough nodes to come, in every round.")
@click.option("--token-file", help="A file with the secret that connections must prove to know.")
def torchrun_coordinator(
    nnodes: str, spares: int, rdzv_endpoint: str | None, rdzv_id: str | None, **conf: float | str | None
) -> int:
    """Coordinate a job of `muster torchrun` without taking part in it: no worker runs here.

    Nodes that come and go then never take the coordinator along. For a host that is not one of the job's, a login or a
    CPU node, or the first task of a step:

    \b
      muster torchrun-coordinator --rdzv-endpoint $(hostname):29400 --rdzv-id 4711 --nnodes 4 --spares 1

    The nodes run `muster torchrun`, or torchrun with --rdzv-backend muster, with the same endpoint, id and numbers. In
    a Slurm step endpoint and id need not be given. The exit code is the job's.
    """
    _demand_torch()
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
        outcome = coordinate(
            settings, lambda: open_store(settings), lambda port: _print(f"coordinating at port {port}")
        )
    except OSError as error:
        raise click.ClickException(str(error)) from error
    _print(f"the job {outcome.state}: {outcome.end_reason}")
    return outcome.exit_code


def _print(text: str) -> None:
    click.echo(f"muster: {text}", err=True)


def _demand_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        name = click.get_current_context().command.name
        raise click.ClickException(f"`muster {name}` needs torch in the same environment: pip install torch")
