"""Secrets out of the process list: `--env API_KEY=...`, as typed, is there for everybody on the login node."""

from __future__ import annotations

import ctypes
import os
import sys

from muster.rundir.redaction import redact_words

_ARG_START, _ARG_END = 47, 48  # of /proc/<pid>/stat, counted from 0 (proc(5): fields 48 and 49)


def hide_secrets() -> None:
    """Overwrite the secrets among this process's own arguments, in place, as `ps` and /proc show them.

    Nothing else changes: Python has copied its arguments before. Where the system does not let us, all stays as it is.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return
    start, end = (int(fields[at - 2]) for at in (_ARG_START, _ARG_END))  # the first two stand before the ")"
    hidden = masked(words)
    if hidden != words and len(hidden) == end - start:
        ctypes.memmove(start, hidden, len(hidden))


def masked(words: bytes) -> bytes:
    """A command line as /proc shows it, of the same length, without its secrets."""
    before = [os.fsdecode(word) for word in words.split(b"\0")]
    shown = []
    for old, new in zip(before, redact_words(before), strict=True):
        room = len(os.fsencode(old))
        shown.append(os.fsencode(new)[:room].ljust(room, b"*"))
    return b"\0".join(shown)
