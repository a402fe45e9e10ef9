"""The terminal view as lines of text."""

from __future__ import annotations

import io

from rich.console import Console

from muster.views.terminal import View


def drawn(view: View, width: int = 100, height: int = 40, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view)
    return file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]
