"""Programs on PATH that only print a text."""

from __future__ import annotations

from pathlib import Path
from shlex import quote


def with_programs(directory: Path, **programs: str) -> dict[str, str]:
    """A PATH that has only these."""
    for name, text in programs.items():
        path = directory / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\necho {quote(text)}\n")
        path.chmod(0o755)
    return {"PATH": str(directory)}
