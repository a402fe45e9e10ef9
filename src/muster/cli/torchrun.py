"""`muster torchrun`: torchrun, with spares."""

from __future__ import annotations

import importlib.util

import click


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
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("`muster torchrun` needs torch in the same environment: pip install torch")
    from muster.torch.launcher import launch

    try:
        return launch(words)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
