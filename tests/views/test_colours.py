"""The colours of the pages: texts have enough contrast, in light and dark mode."""

from __future__ import annotations

import re

import pytest

from muster.views.phases import Phase
from muster.views.report import asset

READABLE, SEEN = 4.5, 3.0  # contrasts that WCAG asks of text, and of signs


def colours(dark: bool) -> dict[str, str]:
    """The colours by name, of the light look or of the dark one."""
    style = asset("page.css")
    light = style[style.index(":root {") : style.index("@media (prefers-color-scheme: dark)")]
    night = style[style.index("@media (prefers-color-scheme: dark)") : style.index("* { box-sizing")]
    found = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{3,6});", light))
    return {**found, **(dict(re.findall(r"--([a-z]+): (#[0-9a-f]{3,6});", night)) if dark else {})}


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dim, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_can_be_read(dark: bool) -> None:
    found = colours(dark)
    for name in ("text", "faint", "accent", "good", "bad", "warn"):
        for ground in ("back", "card", "code"):
            assert contrast(found[name], found[ground]) >= READABLE, (name, ground)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_signs_of_phases_are_seen_on_their_colours(dark: bool) -> None:
    found, sign = colours(dark), "#f4f6f8" if dark else "#15181c"
    assert f"color: {sign}" in asset("page.css")
    for phase in Phase:
        assert contrast(sign, found[phase.value]) >= SEEN, phase
        assert contrast(found["text"], found[phase.value]) >= SEEN, phase  # names in the bars
