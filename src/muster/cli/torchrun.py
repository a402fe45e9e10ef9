"""`muster torchrun`: run torchrun with spare nodes."""

from __future__ import annotations

import importlib.util

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--spares K] [TORCHRUN'S OPTIONS]",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def torchrun(words: tuple[str, ...]) -> int:
    """Run SCRIPT under torchrun on this node, with spare nodes that replace lost ones.

    Start it on every node, spares included, with the same options:

    \b
      srun muster torchrun --spares 1 --nproc-per-node 8 train.py

    It accepts every option of torchrun (`torchrun --help`), and these:

    \b
      --spares K         number of spare nodes, beyond --nnodes
      --last-call S      seconds that a round with enough nodes waits for the others (5; with --nnodes MIN:MAX 30)
      --failover-dir DIR directory that all nodes share: the job survives the loss of the node that coordinates it, if
                         there are three nodes or more, spares included
      --token-file FILE  secret that connections must prove to know; else MUSTER_TORCH_TOKEN, else the run's id
      --rdzv-conf K=V,.. further: rejoin=S (seconds that a job that lost too many nodes waits for new ones), timeout=S,
                         read_timeout=S, node=N, is_host=BOOL

    In a Slurm step with one task per node these need not be given: --nnodes (the tasks without the spares),
    --rdzv-endpoint (the first node, a port derived from the job id), --rdzv-id (the step's) and --node-rank. With
    spares, --max-restarts is their number. Elsewhere --rdzv-endpoint HOST:PORT is required.

    torchrun itself can use this rendezvous, too: --rdzv-backend muster, with --rdzv-conf spares=K.

    All nodes, spares included, exit with the same code: 0 when the job succeeded; the code of the worker that failed
    first, 128+n when signal n ended it; 125 when a node or the rendezvous failed.
    """
    if not words:
        raise click.UsageError("no SCRIPT is given", click.get_current_context())
    require_torch()
    from muster.torch.launcher import launch  # deferred: imports torch, which takes seconds and is optional

    try:
        return launch(words)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        name = click.get_current_context().command.name
        raise click.ClickException(f"`muster {name}` needs torch in the same environment: pip install torch")
