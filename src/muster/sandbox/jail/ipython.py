"""IPython as a session's shell, where the interpreter has it."""

from __future__ import annotations

import sys
from typing import Any


class IPythonShell:
    """An IPython shell without history, colours or a terminal."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        self.shell: Any = InteractiveShell()
        self.shell.history_manager.enabled = False
        self.shell.colors = "NoColor"
        self.shell.ask_exit = lambda: None  # `exit` has nothing to leave here: a session is ended by its owner
        # Its own would page long help texts and wait for keys.
        self.shell.set_hook("show_in_pager", lambda shell, data, *_, **__: print(_text(data)), 0)

    def run(self, code: str, verbosity: str) -> bool:
        """Run a cell; True when it failed. The traceback goes to stdout, as IPython has it."""
        self.shell.InteractiveTB.set_mode(mode=verbosity)
        result = self.shell.run_cell(code, store_history=True)
        sys.stdout.flush()
        return not result.success


def _text(data: Any) -> str:
    return str(data.get("text/plain", "")) if isinstance(data, dict) else str(data)
