"""Log messages of a node: one line each on stderr, with time, node, level and module, written by a thread.

The node's log is in the run directory. Its filesystem may hang, and the event loop that logs must go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time

FORMAT = "%(asctime)s {node} %(levelname)s %(name)s: %(message)s"
FLUSH_TIMEOUT_S = 2.0  # at the end of the process: then what a hung filesystem has not taken is lost
FLUSH_POLL_S = 0.005


class ThreadedStderr(logging.Handler):
    """Writes messages to stderr from a thread, which is started with the first message, after any fork."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._written = self._accepted = 0
        self._pid = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._pid != os.getpid():
            self._pid, self._lines, self._written, self._accepted = os.getpid(), queue.SimpleQueue(), 0, 0
            threading.Thread(target=self._write, args=(self._lines,), daemon=True).start()
        self._accepted += 1
        self._lines.put(self.format(record) + "\n")

    def flush(self) -> None:
        """Wait until the messages are written, but not for a filesystem that hangs."""
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while self._pid == os.getpid() and self._written < self._accepted and time.monotonic() < deadline:
            time.sleep(FLUSH_POLL_S)

    def _write(self, lines: queue.SimpleQueue[str]) -> None:
        while True:
            line = lines.get()
            with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed stream: the message is dropped
                _write_line(line)
            self._written += 1


def _write_line(line: str) -> None:
    """Write without a buffer: it would fill up while the filesystem fails, and then refuse all further messages."""
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        sys.stderr.write(line)
        return
    os.write(fd, line.encode("utf-8", "replace"))


def log_to_stderr(node: str) -> None:
    """Send the messages of Muster's loggers, from INFO up, to stderr: for an agent that is its node's log.

    A process that has configured these loggers already keeps its configuration.
    """
    logger = logging.getLogger("muster")
    if not logger.handlers:
        handler = ThreadedStderr()
        handler.setFormatter(logging.Formatter(FORMAT.format(node=node)))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
