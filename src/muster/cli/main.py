"""The `muster` command."""

from __future__ import annotations

import importlib
import io
import sys

import click

import muster
from muster.cli.argv_redaction import redact_own_argv
from muster.cli.errors import run_command_line

# Command -> module and function; the function has the module's name unless given after a colon.
COMMANDS = {
    **{
        name: name
        for name in (
            *("attach", "clean", "compare", "config", "doctor", "down", "du", "lab", "logs", "ps", "reap", "render"),
            *("report", "run", "runs", "sandbox", "status", "stop", "top", "torchrun", "tunnel", "ui", "up"),
        )
    },
    "cancel": "stop",
    "exec": "exec:exec_",
    "torchrun-coordinator": "torchrun_coordinator",
}


class Commands(click.Group):
    """Import each command only when it is called, so that `muster status` does not wait for imports of `muster ui`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"muster.cli.{module}"), function or module)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(muster.__version__, prog_name="muster")
def cli() -> None:
    """Run Ray, and gangs of processes, on Slurm or on this machine.

    \b
    muster run -N 4 -- python train.py     start a 4-node Ray cluster, run train.py on it, clean up
    muster status | logs -f | stop         show, follow, stop the newest run
    muster top                             watch a run: nodes, pending work, the driver's last lines
    muster ui                              serve a web page with runs, timelines and logs on loopback
    muster report | compare RUN1 RUN2      report on a run, node by node; compare two bring-ups
    muster du | clean                      show the disk usage of runs; remove old runs
    muster config show                     show the settings in force and the source of each
    muster doctor [--nodes 4]              check whether runs work here, with remedies
    muster up -N 4 | attach | down         start a cluster to work on, open a shell on it, stop it
    muster ps | reap                       list what muster.placement runs; reap programs without an owner
    srun muster torchrun train.py          run torchrun on every node of an allocation, with spares
    muster lab up --nodes 4                start a real Slurm of four nodes on this machine, for tests
    muster sandbox serve | exec | bench    run untrusted code, isolated, on this machine
    """


def main() -> None:
    redact_own_argv()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a host name that the terminal cannot encode must not end the command
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run_command_line(cli))


if __name__ == "__main__":
    main()
