"""The `muster` command."""

from __future__ import annotations

import importlib
import io
import sys

import click
from click.shell_completion import CompletionItem

import muster
from muster.cli.argv_redaction import redact_own_argv
from muster.cli.errors import run_command_line

SECTIONS = {
    "Run": {
        "run": "Run a command on a Ray cluster, or as a gang.",
        "render": "Print the script that `muster run` would submit.",
        "validate": "Check job files, and print errors with file and line.",
        "schema": "Print the JSON schema of the job file.",
        "stop": "End a run, and wait until its processes are gone.",
        "cancel": "Same as `stop`.",
        "torchrun": "Run torchrun in an allocation, with spares.",
        "torchrun-coordinator": "Coordinate a torchrun job from a further host.",
    },
    "Watch": {
        "status": "Show the state of a run, or how it ended.",
        "logs": "Print or follow the output of a run or the log of a node.",
        "top": "Watch a run on the terminal.",
        "ui": "Serve a web page with runs, timelines and logs.",
        "report": "Write the report of a run as an HTML file.",
        "compare": "Compare the bring-ups of two runs.",
    },
    "Work on a cluster": {
        "up": "Start a cluster without a driver.",
        "attach": "Open a shell on a node of a cluster.",
        "exec": "Run a command on a node of a cluster.",
        "tunnel": "Open a tunnel to the dashboard, a service or a port.",
        "programs": "List what `muster.placement` runs on a cluster.",
        "reap": "End the programs of `muster.placement` without an owner.",
        "down": "End a cluster that `up` started.",
    },
    "Manage runs and settings": {
        "runs": "List runs.",
        "du": "Show the disk usage of runs.",
        "clean": "Remove the directories of old runs.",
        "nodes": "List nodes that have failed, and forgive them.",
        "config": "Show the settings in force, and their sources.",
        "completion": "Print or install the completion of a shell.",
        "doctor": "Check whether runs work here, and print remedies.",
    },
    "On one machine": {
        "sandbox": "Run untrusted code in isolation.",
        "lab": "Start a real multi-node Slurm, for tests.",
    },
}
"""The commands with their summaries, as `muster --help` lists them without importing one."""

_TARGETS = {"cancel": "stop", "exec": "exec:exec_", "torchrun-coordinator": "torchrun_coordinator"}

# Command -> module and function; the function has the module's name unless given after a colon.
COMMANDS = {name: _TARGETS.get(name, name) for commands in SECTIONS.values() for name in commands}

OLD_NAMES = {"ps": "programs"}
"""Earlier names of commands, which work but are not listed."""


class Commands(click.Group):
    """Import each command only when it is called, so that `muster status` does not wait for imports of `muster ui`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = OLD_NAMES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"muster.cli.{module}"), function or module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing these, which would take a second for each press of a key."""
        named = {name: text for commands in SECTIONS.values() for name, text in commands.items()}
        found = [CompletionItem(name, help=named[name]) for name in sorted(named) if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, subcommand_metavar="COMMAND [ARGS]..."
)
@click.version_option(muster.__version__, "-V", "--version", prog_name="muster")
def cli() -> None:
    """Run Ray, and gangs of processes, on Slurm or on this machine.

    \b
    muster run -N 4 -- python train.py     start a 4-node Ray cluster, run train.py on it, clean up
    muster status | logs -f | stop         show, follow, stop the newest run
    muster doctor --nodes 4                check whether runs work here
    muster up -N 4 | attach | down         start a cluster to work on, open a shell on it, stop it
    muster COMMAND --help                  show the options of a command, with examples
    """


def main() -> None:
    redact_own_argv()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a host name that the terminal cannot encode must not end the command
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run_command_line(cli))


if __name__ == "__main__":
    main()
