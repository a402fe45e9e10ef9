"""A notebook: cells that run one after the other in one interpreter; their results are printed as JSON.

The result of a cell has what Jupyter would show: `stdout`, `stderr`, `display` (values and pictures by MIME type) and
`error` (`ename`, `evalue`, `traceback`). A cell that fails does not end the notebook.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from muster.sandbox.jail import program, repl, session

INLINE_PICTURES = "matplotlib_inline"  # with it, and IPython, `plt.show()` displays the picture


class CellTimeout(BaseException):
    """The cell took too long. Not an Exception: the cell shall not catch it by accident."""


class ReplNotebook(repl.Shell):
    """Runs cells without IPython."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, list[dict[str, Any]]] = {}

    def run_cell(self, code: str) -> None:
        self.run(code, "Plain")

    def show(self, value: Any) -> None:
        self.shown["display"].append({"text/plain": repr(value)})

    def report(self, error: BaseException, verbosity: str, format_it: Callable[[BaseException, str], str]) -> None:
        lines = format_it(error, verbosity).splitlines()
        self.shown["error"].append({"ename": type(error).__name__, "evalue": str(error), "traceback": lines})


class IPythonNotebook:
    """Runs cells in an IPython shell that collects what it would display."""

    def __init__(self) -> None:
        from importlib.util import find_spec  # as below: an import here would make every fork slower

        if find_spec(INLINE_PICTURES) is not None:
            os.environ.setdefault("MPLBACKEND", f"module://{INLINE_PICTURES}.backend_inline")
        self.shown: dict[str, list[dict[str, Any]]] = {}
        shell = session.IPythonShell(_collecting_shell(lambda data: self.shown["display"].append(data))).shell
        shell._showtraceback = self._on_error  # Jupyter's kernel overrides the same method
        self._shell = shell

    def run_cell(self, code: str) -> None:
        self._shell.run_cell(code, store_history=True)

    def _on_error(self, kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        self.shown["error"].append({"ename": kind.__name__, "evalue": str(error), "traceback": list(lines)})


def _collecting_shell(display: Callable[[dict[str, Any]], None]) -> Any:
    """Return IPython's shell, which `get_ipython()` finds, with `display` called for each value and picture."""
    from IPython.core.displayhook import DisplayHook  # optional, and slow to import
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    class Hook(DisplayHook):  # type: ignore[misc]
        def start_displayhook(self) -> None: ...
        def write_output_prompt(self) -> None: ...
        def finish_displayhook(self) -> None: ...
        def write_format_data(self, format_dict: dict[str, Any], *_: Any, **__: Any) -> None:
            display(dict(format_dict))

    class Publisher(DisplayPublisher):  # type: ignore[misc]
        def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
            display(dict(data))

    InteractiveShell.displayhook_class = Hook
    InteractiveShell.display_pub_class = Publisher
    return InteractiveShell.instance()


def run(cells: list[str], backend: str, cell_timeout: float) -> None:
    """Run the cells and print their results. Never returns."""
    results_fd = os.dup(1)
    os.set_inheritable(results_fd, False)
    program.reseed()
    sys.path.insert(0, "")
    sys.argv[:] = [""]
    notebook: Any = IPythonNotebook() if backend == "ipython" else ReplNotebook()
    signal.signal(signal.SIGALRM, _on_alarm)
    results = [_run_cell(notebook, code, cell_timeout) for code in cells]
    with os.fdopen(results_fd, "w", encoding="utf-8") as file:
        json.dump(results, file, default=_as_text)
    program.leave(0)


def _on_alarm(signum: int, frame: FrameType | None) -> None:
    raise CellTimeout("the cell took longer than its timeout")


def _run_cell(notebook: Any, code: str, timeout: float) -> dict[str, Any]:
    """Return the result of one cell. Its streams are files meanwhile, so that output of its children counts too."""
    from tempfile import TemporaryFile

    shown: dict[str, list[dict[str, Any]]] = {"display": [], "error": []}
    notebook.shown = shown
    with TemporaryFile() as out, TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            signal.setitimer(signal.ITIMER_REAL, timeout)
            notebook.run_cell(code)
        except BaseException as error:  # the shells report errors of cells: this one was raised outside of them
            lines = traceback.format_exception_only(type(error), error)
            shown["error"].append({"ename": type(error).__name__, "evalue": str(error), "traceback": lines})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return {"stdout": texts[0], "stderr": texts[1], **shown}


def _as_text(value: Any) -> str:
    """Return a JSON form of what a display has besides texts: pictures in base64, as Jupyter sends them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)
