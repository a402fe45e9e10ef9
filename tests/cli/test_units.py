"""Durations and sizes of options, with and without units."""

from __future__ import annotations

import click
import pytest

from muster.cli.units import size_value, time_value

CONTEXT, OPTION = click.Context(click.Command("c")), click.Option(["--x"])


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("90s", 90), ("1h30m", 5400), ("0", 0), (None, None)])
def test_a_duration_is_in_seconds_or_has_units(text: str | None, seconds: float | None) -> None:
    assert time_value(CONTEXT, OPTION, text) == seconds


@pytest.mark.parametrize(("text", "megabytes"), [("512", 512), ("512M", 512), ("4G", 4096), ("0", 0), (None, None)])
def test_a_size_is_in_megabytes_or_has_a_unit(text: str | None, megabytes: int | None) -> None:
    assert size_value(CONTEXT, OPTION, text) == megabytes


@pytest.mark.parametrize("text", ["soon", "-1", "1x", ""])
def test_other_durations_are_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="give seconds, or a duration such as 90s or 10m"):
        time_value(CONTEXT, OPTION, text)


@pytest.mark.parametrize("text", ["much", "-1", "100K", "1.5"])
def test_other_sizes_are_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="give megabytes, or a size such as 512M or 4G"):
        size_value(CONTEXT, OPTION, text)
