"""Detect input on stdin, which no part of Muster passes on: the job may start hours later, on another host."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios

STDIN_WARNING = (
    "stdin is not passed on: COMMAND finds an empty one. Put the input into a file that the nodes can read, and open "
    "that in COMMAND"
)


def has_input(descriptor: int = 0) -> bool:
    """Return whether a file or pipe with unread data is there. A terminal is not: its user does not expect it."""
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return os.fstat(descriptor).st_size > os.lseek(descriptor, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(mode):
            waiting: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]
            return waiting > 0
    except OSError:  # closed
        pass
    return False
