"""A session: an interpreter whose state stays from cell to cell. A packet in, a packet out; output by the streams."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from types import FrameType
from typing import Any

from muster.sandbox.jail import ipython, program, repl, wire


class Turn:
    """Whether a cell is running: an interrupt that comes too late must not hit what comes after it."""

    def __init__(self) -> None:
        self.running = False
        signal.signal(signal.SIGINT, self.on_interrupt)

    def on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.running:
            raise KeyboardInterrupt


def serve(channel: socket.socket, backend: str) -> None:
    """Run cells until the server is gone. Never returns."""
    program.reseed()
    sys.path.insert(0, "")
    sys.argv[:] = [""]
    shell = ipython.IPythonShell() if backend == "ipython" else repl.Shell()
    turn = Turn()
    with contextlib.suppress(OSError):
        wire.send(channel, {"event": "open"})
        while True:
            message, rest = wire.receive_job(channel)
            if message is None:
                break
            if rest is not None:
                os.close(rest)
            failed = _run(shell, turn, message)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            wire.send(channel, {"event": "done", "cell": message["cell"], "failed": failed})
    program.leave(0)


def _run(shell: Any, turn: Turn, message: dict[str, Any]) -> bool:
    try:
        turn.running = True
        return bool(shell.run(message["code"], message["verbosity"]))
    except KeyboardInterrupt:
        return True
    finally:
        turn.running = False
