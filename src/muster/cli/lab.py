"""`muster lab`: run a real multi-node Slurm on this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table

from muster.cli.command_group import CommandGroup
from muster.cli.json_output import error_record, json_option, json_requested, print_json
from muster.exit_codes import BY_SIGNAL, NOT_STARTED
from muster.lab import Lab, LabError
from muster.lab.lab import LabStatus, NodeStatus
from muster.lab.plan import DEAD_INTERFACE, MAX_EXTRA_NETWORKS, MAX_NODES, PROCTRACKS
from muster.lab.releases import CACHE_VARIABLE, DEFAULT_CACHE, INSTALLED, SUITES, provide, version_of
from muster.lab.users import closed_directory

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _report_lab_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Convert a LabError into a message and an exit code."""

    @wraps(command)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except LabError as error:
            shown = error_record([str(error)], error.exit_code)
            click.echo(json.dumps(shown) if json_requested() else f"muster lab: {error}", err=True)
            sys.exit(error.exit_code)

    return wrapper


def _print(*objects: Any, **style: Any) -> None:
    """Print to the terminal as wide as it is now."""
    Console(highlight=False).print(*objects, **style)


@click.group(cls=CommandGroup)
def lab() -> None:
    """Run a real multi-node Slurm on this machine, for tests and experiments.

    Every node has its own slurmd, network, host name, processes, /tmp and /dev/shm; the lab has its own slurmctld and
    munged. It needs root and the packages slurm-wlm, munge, iproute2 and tini, and changes no configuration of the
    machine; `down` removes everything.

    \b
    muster lab up --nodes 4
    muster lab exec -- srun -N4 hostname
    eval "$(muster lab env)"; sinfo; sbatch job.sh
    muster lab kill-node n3; muster lab heal n3
    muster lab down
    """


@lab.command()
@click.option("--nodes", "-N", type=click.IntRange(1, MAX_NODES), default=4, show_default=True, help="Number of nodes.")
@click.option("-n", "old_nodes", type=click.IntRange(1, MAX_NODES), hidden=True)  # the earlier short form
@click.option(
    "--proctrack",
    type=click.Choice(PROCTRACKS),
    default="cgroup",
    show_default=True,
    help="Process tracking of slurmd: `cgroup`, as in production, or `pgid` where there is no cgroup v1.",
)
@click.option(
    "--shared",
    type=click.Path(exists=True, file_okay=False),
    multiple=True,
    help="Directory below /tmp to share among all nodes (each has its own /tmp otherwise). Repeatable.",
)
@click.option("--slurmd-timeout", type=int, default=10, show_default=True, help="Seconds until a lost node is DOWN.")
@click.option("--kill-wait", type=int, default=10, show_default=True, help="Seconds from SIGTERM to SIGKILL.")
@click.option("--ipv6", is_flag=True, help="Give nodes, and Slurm, IPv6 addresses only.")
@click.option(
    "--extra-networks",
    type=click.IntRange(0, MAX_EXTRA_NETWORKS),
    default=0,
    show_default=True,
    help="Number of further networks between the nodes, with the interfaces eth1, eth2, ...",
)
@click.option("--dead-interface", is_flag=True, help=f"Add an interface {DEAD_INTERFACE} with an unreachable address.")
@click.option("--debian-hosts", is_flag=True, help="Map each node's own name to 127.0.1.1 in its /etc/hosts.")
@click.option(
    "--slurm",
    "release",
    metavar="RELEASE",
    default=INSTALLED,
    show_default=True,
    help=f"Release of Slurm: {', '.join(SUITES)}, or that of the installed one. Another one is built from Debian "
    f"packages at first use, which needs mmdebstrap and a network, and kept in {DEFAULT_CACHE} or ${CACHE_VARIABLE}.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME[:UID]",
    help="Add an ordinary user with a home directory; `lab exec --as NAME` is the login. Repeatable.",
)
@click.option("--conf", multiple=True, metavar="LINE", help="Add a line to slurm.conf. Repeatable.")
@click.option(
    "--topology",
    multiple=True,
    metavar="LINE",
    help="Add a line to topology.conf, for example with --conf TopologyPlugin=topology/tree. Repeatable.",
)
@_report_lab_errors
def up(
    nodes: int,
    old_nodes: int | None,
    proctrack: str,
    shared: tuple[str, ...],
    slurmd_timeout: int,
    kill_wait: int,
    release: str,
    conf: tuple[str, ...],
    **networks: Any,
) -> None:
    """Start a lab and wait until Slurm can use all its nodes.

    Its files are in MUSTER_LAB_DIR (default: /run/muster-lab); a second lab needs another one. The other `muster lab`
    commands find the lab by the same variable, which `muster lab env` sets.
    """
    nodes = old_nodes or nodes
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(BY_SIGNAL + number))
    prefix = provide(release, lambda message: click.echo(f"muster lab: {message}", err=True))
    started = time.monotonic()
    timing = {"slurmd_timeout": slurmd_timeout, "kill_wait": kill_wait}
    options = {**timing, "extra_conf": conf, "slurm_prefix": prefix, **networks}
    running = Lab(nodes, proctrack, shared=shared, **options)
    with Console(stderr=True).status(f"starting {nodes} nodes ..."):
        running.up()
    _print(
        f"[green]up[/]: {nodes} nodes (n1 to n{nodes}), Slurm {version_of(prefix)}, partitions lab and long, "
        f"proctrack/{proctrack}, {time.monotonic() - started:.1f} s",
        soft_wrap=True,
    )
    _print(f"shared by all nodes: {running.plan.shared_dir}", soft_wrap=True)
    _print('next: eval "$(muster lab env)"   or   muster lab exec -- srun -N2 hostname', markup=False)
    for user in networks.get("users", ()):
        name = user.partition(":")[0]
        _print(f"login of {name}: muster lab exec --as {name} -- bash", markup=False)
        if problem := running.python_problem(name):
            click.echo(f"muster lab: {problem}", err=True)


@lab.command()
@json_option("Print the status as JSON.")
@_report_lab_errors
def status(as_json: bool) -> None:
    """Show the lab's nodes and their state in Slurm. The exit code is 1 if no lab is up."""
    found = Lab.attach().status()
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        _print_status(found)


def _print_status(found: LabStatus) -> None:
    controller = "answers" if found.controller_answers else "[red]does not answer[/]"
    setup = f"Slurm {found.slurm_version}, proctrack/{found.proctrack}"
    _print(f"lab in {found.state_dir}, {setup}, slurmctld {controller}", soft_wrap=True)
    table = Table("node", "address", "machine", "slurm", "init pid")
    for node in found.nodes:
        table.add_row(node.name, node.address, _condition(node), node.slurm_state, str(node.pid or "-"))
    _print(table)


def _condition(node: NodeStatus) -> str:
    if not node.alive:
        return "[red]dead[/]"
    return "[green]up[/]" if node.link_up else "[yellow]partitioned[/]"


@lab.command()
@json_option("Print the variables as one JSON object.")
@_report_lab_errors
def env(as_json: bool) -> None:
    """Print shell commands that turn a shell into the lab's login node: eval "$(muster lab env)"."""
    variables = Lab.attach().env_additions()
    if as_json:
        return print_json(variables)
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    python = Path(sys.executable)
    if closed := closed_directory(python) or closed_directory(python.resolve()):
        click.echo(f"muster lab: other users cannot run {python}, because they cannot enter {closed}", err=True)


@lab.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--node", metavar="NODE", help="Node to run COMMAND in. Default: this machine, as the login node.")
@click.option("--as", "user", metavar="USER", help="User of the lab to run COMMAND as, in a new login. Default: root.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_report_lab_errors
def exec_(node: str | None, user: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND in the lab and exit with its code. Write `--` before COMMAND.

    Without --as it starts in the current directory, with --as in the user's home directory.
    """
    running = Lab.attach()
    argv = running.command(command, node, running.start_directory(user), user)
    env = running.env(user)
    try:
        # Replace this process: the command gets signals and terminal, and sets the exit code.
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        click.echo(f"muster lab: {argv[0]}: command not found", err=True)
        sys.exit(NOT_STARTED)


@lab.command("kill-node")
@click.argument("node")
@_report_lab_errors
def kill_node(node: str) -> None:
    """Kill all processes of NODE at once. Slurm notices after SlurmdTimeout."""
    Lab.attach().kill_node(node)
    _print(f"{node} is dead")


@lab.command()
@click.argument("node")
@_report_lab_errors
def partition(node: str) -> None:
    """Disconnect NODE's network; its processes continue."""
    Lab.attach().partition(node)
    _print(f"{node} is disconnected")


@lab.command()
@click.argument("node")
@_report_lab_errors
def heal(node: str) -> None:
    """Restore NODE after kill-node or partition, and wait until Slurm can use it."""
    started = time.monotonic()
    Lab.attach().heal(node)
    _print(f"{node} is restored, {time.monotonic() - started:.1f} s")


@lab.command()
@_report_lab_errors
def down() -> None:
    """Stop the lab and remove its processes, networks and files; succeed if no lab is up."""
    if not Lab.leftovers():
        _print("no lab is up")
        return
    Lab.for_cleanup().down()
    left = Lab.leftovers()
    if left:
        raise LabError("down left behind: " + "; ".join(left))
    _print("down: nothing left")
