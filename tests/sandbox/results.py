"""Results of programs, as tests of the translations need them."""

from __future__ import annotations

from typing import Any

from muster.sandbox.models import ProgramResult, ResourceUsage
from muster.sandbox.output import Captured


def ended(**fields: Any) -> ProgramResult:
    """Return the result of a program that succeeded, with some fields changed."""
    values = {"exit_code": 0, "signal": None, "reason": None, "stdout": Captured(b"o"), "stderr": Captured(b"e")}
    return ProgramResult(**{**values, "usage": ResourceUsage(1.0, 0.5, 1000), **fields})  # type: ignore[arg-type]
