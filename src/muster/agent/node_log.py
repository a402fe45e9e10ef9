"""Log messages of a node: one line each on stderr, with time, node, level and module, written by a thread.

The node's log is in the run directory. Its filesystem may hang, and the event loop that logs must go on.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Collection

from muster.process.log_segments import LOG_MODE, drop_middle, open_newest, segment_bytes, segment_path

STDOUT, STDERR = 1, 2
FORMAT = "%(asctime)s {node} %(levelname)s %(name)s: %(message)s"
FLUSH_TIMEOUT_S = 2.0  # at the end of the process: then what a hung filesystem has not taken is lost
FLUSH_POLL_S = 0.005
AGENT_LIBRARIES = ("asyncio",)  # loggers of the libraries that an agent uses


class ThreadedStderr(logging.Handler):
    """Writes messages to stderr from a thread, which is started with the first message, after any fork."""

    def __init__(self) -> None:
        super().__init__()
        self._records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self._written = self._accepted = 0
        self._pid = 0
        self.limit: NodeLogLimit | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._pid != os.getpid():
            self._pid, self._records, self._written, self._accepted = os.getpid(), queue.SimpleQueue(), 0, 0
            threading.Thread(target=self._write, args=(self._records,), daemon=True).start()
        taken = copy.copy(record)
        taken.msg, taken.args = record.getMessage(), None  # now: the arguments may change
        self._accepted += 1
        self._records.put(taken)

    def flush(self) -> None:
        """Wait until the messages are written, but not for a filesystem that hangs."""
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while self._pid == os.getpid() and self._written < self._accepted and time.monotonic() < deadline:
            time.sleep(FLUSH_POLL_S)

    def _write(self, records: queue.SimpleQueue[logging.LogRecord]) -> None:
        """Format and write messages. A traceback is formatted here, too, because that looks for source files."""
        while True:
            record = records.get()
            with contextlib.suppress(Exception):  # a full disk, or a closed stream: the message is dropped
                _write_line(self.format(record) + "\n")
            if self.limit is not None:
                self.limit.apply()
            self._written += 1


def _write_line(line: str) -> None:
    """Write without a buffer: it would fill up while the filesystem fails, and then refuse all further messages."""
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        sys.stderr.write(line)
        return
    os.write(fd, line.encode("utf-8", "replace"))


def log_to_stderr(node: str, others: Collection[str] = ()) -> None:
    """Send the messages of Muster's loggers, from INFO up, to stderr: for an agent that is its node's log.

    Messages of the loggers `others` follow them; Python would write those without a handler to stderr by itself, on
    the event loop. A process that has configured Muster's loggers already keeps its configuration.
    """
    logger = logging.getLogger("muster")
    if not logger.handlers:
        handler = ThreadedStderr()
        handler.setFormatter(logging.Formatter(FORMAT.format(node=node)))
        logger.setLevel(logging.INFO)
        for name in ("muster", *others):
            logging.getLogger(name).addHandler(handler)


def limit_node_log(path: str, limit: int) -> None:
    """Keep the node's log, to which stdout and stderr of this process go, below `limit` bytes (0: no limit)."""
    for handler in logging.getLogger("muster").handlers if limit and _is_written_to(path) else ():
        if isinstance(handler, ThreadedStderr):
            handler.limit = NodeLogLimit(path, segment_bytes(limit))


def _is_written_to(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(STDERR))
    return False


class NodeLogLimit:
    """Begins the next file of the node's log when the current one is full."""

    def __init__(self, path: str, file_bytes: int) -> None:
        self._path, self._file_bytes = path, file_bytes

    def apply(self) -> None:
        """Check the size; called after each message, on the thread that writes it."""
        with contextlib.suppress(OSError):  # a full disk: the next message tries it again
            size = os.fstat(STDERR).st_size
            if size < self._file_bytes:
                return
            last, start = open_newest(self._path)
            os.close(last)
            new = os.open(segment_path(self._path, start + size), os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE)
            for stream in (STDOUT, STDERR):
                os.dup2(new, stream)
            os.close(new)
            drop_middle(self._path)
