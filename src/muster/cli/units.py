"""Values of options with a unit: durations and sizes are written as in a job file."""

from __future__ import annotations

import click

from muster.spec.validators import seconds, size


def time_value(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return a duration in seconds, from a number of seconds or text with units: 90, 90s, 10m, 1h30m."""
    try:
        return None if value is None else seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}; give seconds, or a duration such as 90s or 10m") from error


def size_value(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return a size in megabytes, from a number of megabytes or text with a unit: 512, 512M, 4G."""
    if value is None:
        return None
    try:
        found = size(f"{value}M" if value.isdecimal() else value)
    except ValueError:
        found = None
    if not isinstance(found, int) or found % (1 << 20):
        raise click.BadParameter(f"{value!r} is not a size; give megabytes, or a size such as 512M or 4G")
    return found >> 20
