"""Make foreign text safe to print: host names, log lines and error texts may contain any characters."""

from __future__ import annotations

import re
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    """Replace control characters, including those that change the text direction or move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def log_line(text: str) -> str:
    """Make a log line printable, and remove its colours."""
    return printable(_COLOURS.sub("", text))


def plain(value: Any) -> Any:
    """Make all texts of a JSON value printable, including keys, and keep their line breaks."""
    if isinstance(value, str):
        return "\n".join(printable(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {plain(str(key)): plain(inner) for key, inner in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    return [plain(inner) for inner in value] if set(map(type, value)) != {int} else list(value)  # fast path for times
