"""Markdown of the generated pages."""

from __future__ import annotations

from collections.abc import Sequence

GENERATED = (
    "This page is generated from the code by `python -m tests.docs.reference`; a test checks that it is current."
)


def heading(title: str, introduction: str = "") -> str:
    """Return the beginning of a page."""
    return "\n\n".join([f"# {title}", *([introduction] if introduction else []), GENERATED]) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; bars in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`"


def cell(text: str) -> str:
    """Return a text as it is written in a table."""
    # Outside of code, < would begin a tag.
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))
