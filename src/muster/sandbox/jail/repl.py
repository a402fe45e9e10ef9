"""A small replacement for IPython's shell on nodes without it.

It keeps state, prints the value of the last expression, and supports top-level await, `!command`, and IPython's three
simplest forms of tracebacks.
"""

from __future__ import annotations

import ast
import linecache
import re
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

CELL = "<cell {}>"
CO_COROUTINE = 0x80
_COMMAND = re.compile(r"^([ \t]*)!(.+)$", re.MULTILINE)
_MAGIC = re.compile(r"^%", re.MULTILINE)


class Shell:
    """The state of one session."""

    def __init__(self) -> None:
        self.main = types.ModuleType("__main__")
        self.names = self.main.__dict__
        self.names.update(__builtins__=__builtins__, _run_command=run_command)
        sys.modules["__main__"] = self.main
        self.count = 0
        self.loop: Any = None

    def run(self, code: str, verbosity: str) -> bool:
        """Run a cell; its output and traceback go to stdout. Return True if it failed."""
        self.count += 1
        name = CELL.format(self.count)
        try:
            code = with_commands(code)
            linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
            tree = ast.parse(code, name)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.report(error, verbosity, format_syntax_error)
            return True
        try:
            self._execute(tree, name, echoes=not code.rstrip().endswith(";"))
        except BaseException as error:  # including SystemExit: only its owner ends a session
            self.report(error, verbosity, format_error)
            return True
        return False

    def report(self, error: BaseException, verbosity: str, format_it: Callable[[BaseException, str], str]) -> None:
        sys.stdout.write(format_it(error, verbosity))

    def show(self, value: Any) -> None:
        sys.stdout.write(repr(value) + "\n")

    def _execute(self, tree: ast.Module, name: str, echoes: bool) -> None:
        last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) and echoes else None
        body = tree.body[:-1] if last is not None else tree.body
        if body:
            self._value(compile(ast.Module(body, tree.type_ignores), name, "exec", _FLAGS, dont_inherit=True))
        if isinstance(last, ast.Expr):
            value = self._value(compile(ast.Expression(last.value), name, "eval", _FLAGS, dont_inherit=True))
            if value is not None:
                self.names["_"] = value
                self.show(value)

    def _value(self, code: types.CodeType) -> Any:
        value = eval(code, self.names)
        if code.co_flags & CO_COROUTINE:
            if self.loop is None:
                import asyncio  # rarely needed, and it would make every fork slower

                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            return self.loop.run_until_complete(value)
        return value


_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def with_commands(code: str) -> str:
    """Replace `!ls` by the call that runs it, only if the code is not valid Python: a string may hold such a line."""
    if "!" not in code and "%" not in code:
        return code
    try:
        ast.parse(code)
        return code
    except SyntaxError as error:
        if _MAGIC.search(code):
            raise SyntaxError("magic commands need IPython, which is not installed here") from error
        return _COMMAND.sub(lambda found: f"{found[1]}_run_command({found[2]!r})", code)


def run_command(command: str) -> None:
    sys.stdout.flush()
    subprocess.run(["/bin/bash", "-c", command], check=False)


# -- errors ---------------------------------------------------------------------------------------------------------


def format_syntax_error(error: BaseException, verbosity: str) -> str:
    """Format an error of the compiler, without a traceback since nothing has run."""
    lines = traceback.format_exception_only(type(error), error)
    if verbosity == "Minimal":
        return lines[-1]
    return "".join(line for line in lines if not line.lstrip().startswith("File "))


def format_error(error: BaseException, verbosity: str) -> str:
    """Format an error with its traceback, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    last = "".join(traceback.format_exception_only(type(error), error))
    last = last.removeprefix(f"{type(error).__module__}.")  # as IPython prints it
    if verbosity == "Minimal":
        return last
    if verbosity != "Plain":
        return "".join(traceback.format_exception(type(error), error, trace))
    lines = ["Traceback (most recent call last):\n"]
    for frame in traceback.extract_tb(trace):
        if not frame.filename.startswith("<cell "):
            lines.append(f"  File {frame.filename}:{frame.lineno} in {frame.name}\n")
        if frame.line:
            lines.append(f"    {frame.line}\n")
    return "".join([*lines, last])
