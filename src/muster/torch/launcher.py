"""`muster torchrun`: torchrun's launcher with Muster's rendezvous, defaults from Slurm, and the job's exit code.

torchrun exits with 1 for every failure. Here every node, including spares, exits with the code that the coordinator
recorded first; a node that did not receive it never exits with 0.
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
from muster.torch.settings import BACKEND, ON_HANDLER

logger = logging.getLogger(__name__)

_DERIVED_OPTIONS = ("nnodes", "rdzv_id", "max_restarts", "node_rank")  # derived from the environment if not given


def launch(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run this node's part of the job and return the exit code. Raise ValueError for invalid options."""
    config, command, command_args = torchrun_config(parse_options(arguments, launch_environment(environ), environ))
    handlers: list[MusterRendezvous] = []
    config.rdzv_configs[ON_HANDLER] = handlers.append
    rendezvous_handler_registry.register(BACKEND, create_handler)
    error: BaseException | None = None
    try:
        record(lambda: launch_agent(config, command, command_args))()
    except (Exception, SystemExit) as caught:
        error = caught
    if not handlers and error is not None:
        raise error
    if isinstance(error, SignalException):
        handlers[0].withdraw(f"was ended by {signal_name(error.sigval)}")
        return BY_SIGNAL + int(error.sigval)
    return exit_code(handlers[0].outcome, error)


def exit_code(outcome: RunOutcome | None, error: BaseException | None) -> int:
    """Return the job's exit code and print the reason, with torchrun's report of workers that failed on this node."""
    code, reason = ending(error)
    if isinstance(error, ChildFailedError):
        print(error, file=sys.stderr, flush=True)
    if outcome is None:
        logger.error("%s", reason if code else "the coordinator disconnected before it sent the outcome of the job")
        return code or INFRASTRUCTURE_FAILED
    if outcome.exit_code:
        logger.error("the job %s: %s", outcome.state, outcome.end_reason)
    return outcome.exit_code


def parse_options(
    arguments: Sequence[str], environment: LaunchEnvironment, environ: Mapping[str, str]
) -> argparse.Namespace:
    """Parse torchrun's options and ours. Options and PET_* variables have priority over the launch environment."""
    parser = get_args_parser()
    parser.prog = "muster torchrun"
    ours = parser.add_argument_group("muster")
    ours.add_argument("--spares", type=int, help="Number of spare nodes, in addition to --nnodes.")
    ours.add_argument("--last-call", type=float, help="Seconds that a round with enough nodes waits for the others.")
    ours.add_argument("--token-file", help="File with the secret that authenticates connections.")
    ours.add_argument(
        "--failover-dir",
        help="Directory that all nodes share. With it the job survives the loss of the node that coordinates it.",
    )
    defaults = {"rdzv_backend": BACKEND, **dict.fromkeys(_DERIVED_OPTIONS)}
    parser.set_defaults(**{name: value for name, value in defaults.items() if f"PET_{name.upper()}" not in environ})
    args: argparse.Namespace = parser.parse_args(list(arguments))
    spares = args.spares or 0
    if args.rdzv_backend != BACKEND:
        raise ValueError(
            f"--rdzv-backend {args.rdzv_backend}: `muster torchrun` supports only {BACKEND}; use torchrun for others"
        )
    if args.nnodes is None:
        args.nnodes = str((environment.nodes or 1) - spares)
    min_nodes, max_nodes = parse_nnodes(args.nnodes)
    if min_nodes < 1:
        raise ValueError(f"--spares {spares}: no node is left of {environment.nodes or 1}")
    args.rdzv_endpoint = (
        args.rdzv_endpoint or environment.endpoint or ("localhost:0" if max_nodes + spares == 1 else "")
    )
    if not args.rdzv_endpoint:
        raise ValueError("--rdzv-endpoint HOST:PORT is required outside of a Slurm step, the same on every node")
    args.rdzv_id = args.rdzv_id or environment.run_id or "none"
    args.max_restarts = spares if args.max_restarts is None else args.max_restarts
    args.standalone = False
    return args


def torchrun_config(args: argparse.Namespace) -> tuple[Any, Callable[..., Any] | str, list[str]]:
    """Return torchrun's configuration, command and arguments, with our options as those of the rendezvous."""
    node_index, args.node_rank = args.node_rank, 0
    try:
        config, command, arguments = config_from_args(args)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    ours = {"spares": args.spares, "last_call": args.last_call, "token_file": args.token_file, "node": node_index}
    ours["failover_dir"] = args.failover_dir
    config.rdzv_configs.update({name: value for name, value in ours.items() if value is not None})
    return config, command, arguments


def parse_nnodes(nnodes: str) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes. Raise ValueError for other texts than N or MIN:MAX."""
    try:
        min_nodes, max_nodes = parse_min_max_nnodes(nnodes)
    except (RuntimeError, ValueError):
        raise ValueError(f"--nnodes {nnodes}: must be N or MIN:MAX") from None
    return min_nodes, max_nodes
