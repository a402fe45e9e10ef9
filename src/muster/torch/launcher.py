"""`muster torchrun`: torchrun's own launcher with Muster's rendezvous, defaults from its place, the job's exit code.

torchrun exits with 1 whatever happened on whichever node. Here every node, spares included, exits with the code that
the coordinator recorded first; a node that never heard it does not claim a success.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher.api import launch_agent
from torch.distributed.run import config_from_args, get_args_parser, parse_min_max_nnodes

from muster.exit_codes import BY_SIGNAL, INFRASTRUCTURE_FAILED
from muster.lifecycle.events import RunOutcome
from muster.process import signal_name
from muster.torch.handler import MusterRendezvous, create_handler, ending
from muster.torch.launch_env import LaunchEnvironment, launch_environment
from muster.torch.plugin import BACKEND
from muster.torch.settings import ON_HANDLER

logger = logging.getLogger(__name__)

_UNSAID = ("nnodes", "rdzv_id", "max_restarts", "node_rank")  # unless somebody says it, we do


def launch(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """This node's part of the job, to its end. ValueError where the options make no sense."""
    config, command, arguments = configured(parse(words, launch_environment(environ), environ))
    handlers: list[MusterRendezvous] = []
    config.rdzv_configs[ON_HANDLER] = handlers.append
    rendezvous_handler_registry.register(BACKEND, create_handler)
    error: BaseException | None = None
    try:
        record(lambda: launch_agent(config, command, arguments))()
    except (Exception, SystemExit) as caught:
        error = caught
    if not handlers and error is not None:
        raise error
    if isinstance(error, SignalException):
        handlers[0].withdraw(f"was ended by {signal_name(error.sigval)}")
        return BY_SIGNAL + int(error.sigval)
    return exit_code(handlers[0].outcome, error)


def exit_code(outcome: RunOutcome | None, error: BaseException | None) -> int:
    """The job's, which is said here too, with what torchrun says of workers that failed on this node."""
    code, reason = ending(error)
    if isinstance(error, ChildFailedError):
        print(error, file=sys.stderr, flush=True)
    if outcome is None:
        logger.error("%s", reason if code else "the coordinator went before it said how the job ended")
        return code or INFRASTRUCTURE_FAILED
    if outcome.exit_code:
        logger.error("the job %s: %s", outcome.state, outcome.end_reason)
    return outcome.exit_code


def parse(words: Sequence[str], place: LaunchEnvironment, environ: Mapping[str, str]) -> argparse.Namespace:
    """torchrun's options and ours. What neither they nor torchrun's PET_* variables say comes from the surroundings."""
    parser = get_args_parser()
    parser.prog = "muster torchrun"
    ours = parser.add_argument_group("muster")
    ours.add_argument("--spares", type=int, help="Nodes that wait, beyond --nnodes.")
    ours.add_argument("--last-call", type=float, help="Seconds that a round with enough nodes waits for the others.")
    ours.add_argument("--token-file", help="A file with the secret that connections must prove to know.")
    defaults = {"rdzv_backend": BACKEND, **dict.fromkeys(_UNSAID)}
    parser.set_defaults(**{name: value for name, value in defaults.items() if f"PET_{name.upper()}" not in environ})
    args: argparse.Namespace = parser.parse_args(list(words))
    spares = args.spares or 0
    if args.rdzv_backend != BACKEND:
        raise ValueError(f"--rdzv-backend {args.rdzv_backend}: `muster torchrun` has its own; use torchrun for another")
    if args.nnodes is None:
        args.nnodes = str((place.nodes or 1) - spares)
    least, most = numbers(args.nnodes)
    if least < 1:
        raise ValueError(f"--spares {spares}: no node is left of {place.nodes or 1}")
    args.rdzv_endpoint = args.rdzv_endpoint or place.endpoint or ("localhost:0" if most + spares == 1 else "")
    if not args.rdzv_endpoint:
        raise ValueError("--rdzv-endpoint HOST:PORT is needed outside of a Slurm step: the same on every node")
    args.rdzv_id = args.rdzv_id or place.run_id or "none"
    args.max_restarts = spares if args.max_restarts is None else args.max_restarts
    args.standalone = False
    return args


def configured(args: argparse.Namespace) -> tuple[Any, Callable[..., Any] | str, list[str]]:
    """torchrun's configuration, with our options as those of the rendezvous."""
    number, args.node_rank = args.node_rank, 0
    try:
        config, command, arguments = config_from_args(args)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    ours = {"spares": args.spares, "last_call": args.last_call, "token_file": args.token_file, "node": number}
    config.rdzv_configs.update({name: value for name, value in ours.items() if value is not None})
    return config, command, arguments


def numbers(nnodes: str) -> tuple[int, int]:
    try:
        least, most = parse_min_max_nnodes(nnodes)
    except (RuntimeError, ValueError):
        raise ValueError(f"--nnodes {nnodes}: must be N or MIN:MAX") from None
    return least, most
