"""Text of foreign origin as plain text: host names, log lines, error texts may hold anything."""

from __future__ import annotations

import re
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    """Without control characters, also those that turn a line round: a log line must not move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def log_line(text: str) -> str:
    """A line of a log: its colours are left out, all else that is no text is seen to be none."""
    return printable(_COLOURS.sub("", text))


def plain(value: Any) -> Any:
    """A JSON value with all its texts, keys too, made printable. Lines in a text stay lines."""
    if isinstance(value, str):
        return "\n".join(printable(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {plain(str(key)): plain(inner) for key, inner in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    return [plain(inner) for inner in value] if set(map(type, value)) != {int} else list(value)  # most are times
