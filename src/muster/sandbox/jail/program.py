"""Run a Python program in this interpreter as `python3 -c` or `python3 FILE` would: names, traceback, exit code."""

from __future__ import annotations

import _thread
import atexit
import linecache
import os
import sys
import threading
import types
from typing import Any

NAME = "<string>"


def run(code: str, file: str | None = None) -> None:
    """Run the program and exit; threads, exit functions and buffers are completed as at a normal exit.

    With `file` it is written there first, and can read its own source.
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    name = os.path.abspath(file) if file else NAME
    sys.argv[:] = [name if file else "-c"]
    sys.path.insert(0, os.path.dirname(name))
    reseed()
    status = 0
    try:
        if file:
            main.__file__ = name
            with open(name, "w", encoding="utf-8", errors="surrogatepass") as source:
                source.write(code)
        program = compile(code, name, "exec", dont_inherit=True)
    except BaseException as error:
        status = _report(error, None, code)
    else:
        try:
            exec(program, main.__dict__)
        except BaseException as error:
            trace = error.__traceback__
            status = _report(error, trace and trace.tb_next, code)
    leave(status)


def reseed() -> None:
    """Reseed numpy: all forks of one interpreter would draw the same numbers. `random` reseeds itself."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _report(error: BaseException, trace: types.TracebackType | None, code: str) -> int:
    """Print the error as the interpreter would; return the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    error.__traceback__ = trace
    if sys.version_info >= (3, 13):  # since then `python3 -c` shows source lines
        linecache.cache[NAME] = len(code), None, code.splitlines(keepends=True), NAME
    sys.excepthook(type(error), error, trace)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def leave(status: int) -> None:
    """Exit as the interpreter does, without finalization, which would touch, and so copy, all of its memory."""
    if _thread._count():
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except BaseException:
            sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            status = status or 120  # as the interpreter exits when the last output is lost
    os._exit(status)
