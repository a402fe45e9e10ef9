"""The `muster` command."""

from __future__ import annotations

import importlib
import io
import sys

import click

import muster
from muster.cli.errors import run_command_line
from muster.cli.process_list import hide_secrets

# Command -> the module and the name that it has there.
COMMANDS = {
    **dict.fromkeys(("logs", "runs", "status", "stop"), "inspect"),
    **dict.fromkeys(("config", "doctor", "lab", "render", "run", "sandbox", "top", "tunnel", "ui"), ""),
    "attach": "attach",
    "cancel": "inspect:stop",
    "clean": "clean",
    "compare": "report:compare_",
    "down": "up",
    "du": "clean",
    "exec": "attach:exec_",
    "ps": "ps",
    "reap": "ps",
    "report": "report",
    "torchrun": "torchrun",
    "torchrun-coordinator": "torchrun:torchrun_coordinator",
    "up": "up",
}


class Commands(click.Group):
    """Each command is imported when it is called: `muster status` does not wait for what `muster ui` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = (COMMANDS[cmd_name] or cmd_name).partition(":")
        command: click.Command = getattr(importlib.import_module(f"muster.cli.{module}"), name or cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(muster.__version__, prog_name="muster")
def cli() -> None:
    """Run Ray, and gangs of processes, on Slurm or on this machine.

    \b
    muster run -N 4 -- python train.py     start a 4-node Ray cluster, run train.py on it, clean up
    muster status | logs -f | stop         look at, follow, end the newest run
    muster top                             watch it: nodes, what it waits for, the driver's last lines
    muster ui                              the same and more as a web page on this host's loopback
    muster report | compare RUN1 RUN2      what a run did, node by node; two bring-ups side by side
    muster du | clean                      what runs take of the disk; remove old ones
    muster config show                     the settings in force, and where each came from
    muster doctor [--nodes 4]              check whether runs would work here, and what to do if not
    muster up -N 4 | attach | down         a cluster to work on: bring it up, a shell on it, end it
    muster ps | reap                       what muster.placement runs on the cluster; end what has no owner
    srun muster torchrun train.py          torchrun on every node of an allocation, with spares
    muster lab up --nodes 4                a real Slurm of four nodes on this machine, to try things on
    muster sandbox serve | exec | bench    run foreign code, contained, on this machine
    """


def main() -> None:
    hide_secrets()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a host's name must not end us where the terminal cannot show it
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run_command_line(cli))


if __name__ == "__main__":
    main()
