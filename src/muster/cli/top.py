"""`muster top`: a live view of a run on the terminal."""

from __future__ import annotations

import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, all_runs, find_run
from muster.runs.stop import is_live
from muster.views.report import leave_report
from muster.views.terminal import LOOK_S, Top, View, plain_line

LEAVE = "q\x1b\x03\x04"


@click.command()
@click.argument("run", required=False)
@click.option("--runs-dir", type=click.Path(path_type=Path), help="Look for runs in this directory only.")
def top(run: str | None, runs_dir: Path | None) -> None:
    """Watch RUN (default: the newest live one, else the newest): its nodes, what it waits for, the driver's last lines.

    It ends with the run; q leaves it earlier. Without a terminal it prints a line at every change.
    """
    paths = _meant(run, runs_dir)
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        _watch(Top(paths), console)
    else:
        _lines(View(paths))
    leave_report(paths)


def _meant(run: str | None, runs_dir: Path | None) -> RunPaths:
    try:
        live = [found for found in all_runs(runs_dir) if is_live(found)] if run is None else []
        return live[-1] if live else find_run(run, runs_dir)
    except NoSuchRun as error:
        raise click.ClickException(str(error)) from error


def _watch(view: Top, console: Console) -> None:
    """On the terminal's other screen, which it has for such things; what was seen last stays on the ordinary one."""
    shown = Live(view, console=console, screen=True, auto_refresh=False, redirect_stdout=False)
    left = False
    with contextlib.suppress(KeyboardInterrupt), _keys() as keys, shown as live:
        while view.look().live and not left:
            live.refresh()
            left = keys.pressed(LOOK_S)
    view.look()
    console.print(view)


def _lines(view: View) -> None:
    shown, start = None, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            run = view.look()
            line = plain_line(run, view.seen)
            if line != shown:
                click.echo(f"[{time.monotonic() - start:7.1f} s] {line}")
            shown = line
            if not run.live:
                return
            time.sleep(LOOK_S)


class _Keys:
    """Key presses, where there is a keyboard."""

    def __init__(self, keyboard: int | None) -> None:
        self._keyboard = keyboard

    def pressed(self, seconds: float) -> bool:
        """Wait for so long; whether somebody wants to leave."""
        if self._keyboard is None:
            time.sleep(seconds)
            return False
        ready, _, _ = select.select([self._keyboard], [], [], seconds)
        return bool(ready) and sys.stdin.read(1) in LEAVE


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Single keys, without an echo; the terminal is as before afterwards."""
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield _Keys(keyboard)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
