"""The `muster` command."""

from __future__ import annotations

import io
import sys

import click

import muster
from muster.cli.clean import clean, du
from muster.cli.cluster import down, up
from muster.cli.config import config
from muster.cli.doctor import doctor
from muster.cli.enter import attach, exec_
from muster.cli.errors import run_command_line
from muster.cli.inspect import logs, runs, status, stop
from muster.cli.lab import lab
from muster.cli.process_list import hide_secrets
from muster.cli.programs import ps, reap
from muster.cli.render import render
from muster.cli.report import compare_, report
from muster.cli.run import run
from muster.cli.sandbox import sandbox
from muster.cli.top import top
from muster.cli.torchrun import torchrun, torchrun_coordinator
from muster.cli.tunnel import tunnel
from muster.cli.ui import ui


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (
    run, render, status, logs, stop, runs, top, report, compare_, ui, up, attach, exec_, tunnel, down, ps, reap,
    torchrun, torchrun_coordinator, du, clean, config, doctor, lab, sandbox,
):  # fmt: skip
    cli.add_command(command)
cli.add_command(stop, "cancel")  # the word that Slurm's users know


def main() -> None:
    hide_secrets()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a host's name must not end us where the terminal cannot show it
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run_command_line(cli))


if __name__ == "__main__":
    main()
