"""Redact secrets in this process's arguments: every user of a login node can read `--env API_KEY=...` with `ps`."""

from __future__ import annotations

import ctypes
import os
import sys

from muster.rundir.redaction import redact_words

_ARG_START, _ARG_END = 47, 48  # indexes in /proc/<pid>/stat, from 0 (proc(5): fields 48 and 49)


def redact_own_argv() -> None:
    """Overwrite the secrets among this process's arguments in place, where `ps` and /proc read them.

    Python copied its arguments earlier, so `sys.argv` keeps its values. Where /proc cannot be read, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        with open("/proc/self/cmdline", "rb") as file:
            cmdline = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return
    start, end = (int(fields[at - 2]) for at in (_ARG_START, _ARG_END))  # two fields precede the ")"
    redacted = redacted_cmdline(cmdline)
    if redacted != cmdline and len(redacted) == end - start:
        ctypes.memmove(start, redacted, len(redacted))


def redacted_cmdline(cmdline: bytes) -> bytes:
    """Return the contents of /proc/<pid>/cmdline with secrets replaced, at the same length."""
    before = [os.fsdecode(word) for word in cmdline.split(b"\0")]
    shown = []
    for old, new in zip(before, redact_words(before), strict=True):
        room = len(os.fsencode(old))
        shown.append(os.fsencode(new)[:room].ljust(room, b"*"))
    return b"\0".join(shown)
