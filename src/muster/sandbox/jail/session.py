"""A session: an interpreter that keeps its state from cell to cell.

Each cell is a packet and is answered by a packet; its output goes to the standard streams.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from types import FrameType
from typing import Any

from muster.sandbox.jail import program, repl, wire
from muster.sandbox.jail.gvisor import engine_time


class InterruptGuard:
    """Raises KeyboardInterrupt only while a cell runs whose time is over.

    A late interrupt must not hit what comes after its cell; an early one, before the cell has begun here, must not be
    lost: on a busy machine the session would be killed for it.
    """

    def __init__(self) -> None:
        self.cell_is_running = False
        self.deadline = 0.0  # of the cell, by the monotonic clock of the engine
        signal.signal(signal.SIGINT, self.on_interrupt)

    def begin(self, deadline: float) -> None:
        """Start a cell; raises KeyboardInterrupt if its time is over already."""
        self.deadline, self.cell_is_running = deadline, True
        if 0 < deadline <= engine_time():
            raise KeyboardInterrupt

    def on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.cell_is_running and engine_time() >= self.deadline:
            raise KeyboardInterrupt


class IPythonShell:
    """An IPython shell without history, colors or a terminal, for interpreters that have IPython."""

    def __init__(self, shell: Any = None) -> None:
        """Set up the given shell, or a new one."""
        from IPython.core.interactiveshell import InteractiveShell  # optional, and slow to import

        self.shell: Any = shell or InteractiveShell()
        self.shell.history_manager.enabled = False
        self.shell.colors = "NoColor"
        self.shell.ask_exit = lambda: None  # `exit` does nothing: only its owner ends a session
        # The default would page long help texts and wait for keys.
        self.shell.set_hook("show_in_pager", lambda shell, data, *_, **__: print(_text(data)), 0)

    def run(self, code: str, verbosity: str) -> bool:
        """Run a cell; return True if it failed. The traceback goes to stdout, as in IPython."""
        self.shell.InteractiveTB.set_mode(mode=verbosity)
        result = self.shell.run_cell(code, store_history=True)
        sys.stdout.flush()
        return not result.success


def _text(data: Any) -> str:
    return str(data.get("text/plain", "")) if isinstance(data, dict) else str(data)


def serve(channel: socket.socket, backend: str) -> None:
    """Run cells until the engine is gone. Never returns."""
    program.reseed()
    sys.path.insert(0, "")
    sys.argv[:] = [""]
    shell = IPythonShell() if backend == "ipython" else repl.Shell()
    guard = InterruptGuard()
    with contextlib.suppress(OSError):
        wire.send(channel, {"event": "open"})
        while True:
            message, rest = wire.receive_job(channel)
            if message is None:
                break
            if rest is not None:
                os.close(rest)
            failed = _run(shell, guard, message)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            wire.send(channel, {"event": "done", "cell": message["cell"], "failed": failed})
    program.leave(0)


def _run(shell: Any, guard: InterruptGuard, message: dict[str, Any]) -> bool:
    try:
        guard.begin(message.get("deadline", 0.0))
        return bool(shell.run(message["code"], message["verbosity"]))
    except KeyboardInterrupt:
        return True
    finally:
        guard.cell_is_running = False
