"""Run parts of the jail in a forked process: what they do to their process cannot be undone."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import pytest

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts and users outside a user namespace need root")
NOT_LEFT = 99  # the exit code of a function that returned


def start(function: Callable[[], object]) -> int:
    """Fork a process that calls the function and exits; return its pid. The caller waits for it."""
    pid = os.fork()
    if pid == 0:
        try:
            atexit._clear()  # pytest's own belong to the parent, as do the streams with which it captures output
            sys.stdin = os.fdopen(0, closefd=False)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
            function()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(NOT_LEFT)
    return pid


def exit_code(pid: int) -> int:
    """Wait for the process; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def value_of(function: Callable[[], Any]) -> Any:
    """Return what the function returns in a forked process, as JSON."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:

            def report() -> None:
                try:
                    found = {"value": function()}
                except BaseException:
                    found = {"error": traceback.format_exc()}
                theirs.sendall(json.dumps(found).encode())

            pid = start(report)
        with ours.makefile("rb") as file:
            data = file.read()
    code = exit_code(pid)
    assert data, f"it ended with {code} and no result"
    found = json.loads(data)
    assert "error" not in found, found["error"]
    return found["value"]


def output_of(function: Callable[[], object]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a forked process that calls the function."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def redirected() -> None:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            function()

        code = exit_code(start(redirected))
        for file in (out, err):
            file.seek(0)
        return code, out.read(), err.read()
