"""A handle on one process that never refers to a later process with the same pid."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Collection

from muster.process.proctree import read_process, send_signal


class ProcessHandle:
    """Holds a pidfd; only the pid where the kernel or this Python has no pidfds, or a container forbids them."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd: int | None = None
        self.gone = False
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.gone = True
        except (AttributeError, OSError):  # before Linux 5.3, or built before it; forbidden in some containers
            return

    def send(self, signum: int) -> bool:
        """Send a signal; False if the process may not be signalled. An ended process is not an error."""
        if self.fd is None or not hasattr(signal, "pidfd_send_signal"):
            return self.gone or send_signal(self.pid, signum)
        try:
            signal.pidfd_send_signal(self.fd, signum)
        except ProcessLookupError:
            self.release()
        except PermissionError:
            return False
        return True

    def release(self) -> None:
        """Close the handle; the process counts as gone."""
        self.gone = True
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def wait_for_one(handles: Collection[ProcessHandle], seconds: float) -> None:
    """Wait until one more of the processes has ended, at most `seconds`."""
    waiting = {handle.fd: handle for handle in handles if handle.fd is not None}
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(seconds * 1000):
        waiting[fd].release()
    for handle in handles:
        if handle.fd is None and not handle.gone and read_process(handle.pid) is None:
            handle.gone = True
