"""Convert values of foreign JSON files to the expected type; a value of another type becomes None or an empty one."""

from __future__ import annotations

from typing import Any


def as_time(value: Any) -> float | None:
    """Return a time in seconds since the epoch."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e11 else None


def as_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000 else None


def as_count(value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and 0 <= value < 1e15 else 0.0


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""
