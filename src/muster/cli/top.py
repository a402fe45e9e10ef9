"""`muster top`: show a live view of a run on the terminal."""

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

from muster.cli.run_argument import resolve_run, run_argument, run_errors, runs_dir_option
from muster.rundir import RunPaths
from muster.runs.index import all_runs
from muster.runs.stop import is_live
from muster.views.report import ensure_report
from muster.views.terminal import VIEW_POLL_S, Top, View, plain_line

QUIT_KEYS = "q\x1b\x03\x04"  # q, Escape, ^C, ^D


@click.command()
@run_argument
@runs_dir_option
def top(run: str | None, runs_dir: Path | None) -> None:
    """Watch RUN (default: the newest live one, else the newest): nodes, pending work, the driver's last lines.

    It exits when the run ends, or at q. Without a terminal it prints a line at every change.
    """
    paths = _resolve(run, runs_dir)
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        _watch(Top(paths), console)
    else:
        _print_lines(View(paths))
    ensure_report(paths)


def _resolve(run: str | None, runs_dir: Path | None) -> RunPaths:
    with run_errors():
        live = [found for found in all_runs(runs_dir) if is_live(found)] if run is None else []
    return live[-1] if live else resolve_run(run, runs_dir)


def _watch(view: Top, console: Console) -> None:
    """Show the view on the terminal's alternate screen, and its last state on the normal screen at the end."""
    shown = Live(view, console=console, screen=True, auto_refresh=False, redirect_stdout=False)
    quit_pressed = False
    with contextlib.suppress(KeyboardInterrupt), _open_keyboard() as keyboard, shown as live:
        while view.poll().live and not quit_pressed:
            live.refresh()
            quit_pressed = keyboard.wait_for_quit(VIEW_POLL_S)
    view.poll()
    console.print(view)


def _print_lines(view: View) -> None:
    shown, start = None, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            run = view.poll()
            line = plain_line(run, view.timeline)
            if line != shown:
                click.echo(f"[{time.monotonic() - start:7.1f} s] {line}")
            shown = line
            if not run.live:
                return
            time.sleep(VIEW_POLL_S)


class _Keyboard:
    """Key presses on stdin, or none where stdin is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def wait_for_quit(self, seconds: float) -> bool:
        """Wait up to `seconds` for a key; return whether it is one that quits."""
        if self._descriptor is None:
            time.sleep(seconds)
            return False
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        return bool(ready) and sys.stdin.read(1) in QUIT_KEYS


@contextlib.contextmanager
def _open_keyboard() -> Iterator[_Keyboard]:
    """Read single keys without echo; restore the terminal afterwards."""
    if not sys.stdin.isatty():
        yield _Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
