"""Foreign text that is safe to print."""

from __future__ import annotations

import pytest
from tests.views.synthetic import HOSTILE

from muster.views.sanitize import log_line, plain, printable

R = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    assert all(char.isprintable() or char == "\t" for char in printable(text) + log_line(text))
    assert len(printable(text)) == len(text)


def test_harmless_text_stays_as_it_is() -> None:
    assert printable("gr\u00fcn\t<b>") == "gr\u00fcn\t<b>"


def test_the_colours_of_a_log_line_are_removed_and_other_sequences_replaced() -> None:
    assert log_line("\x1b[1;31mred\x1b[0m") == "red"
    assert log_line("\x1b[2Jgone") == f"{R}[2Jgone"


def test_all_texts_of_a_json_value_are_printable_and_keep_their_lines() -> None:
    value = {"a\x07": ["x\ny\r", {"k": ("\x1b",)}], "n": 7, "times": [1, 2], "none": None, "yes": True}
    assert plain(value) == {
        f"a{R}": [f"x\ny{R}", {"k": [R]}],
        "n": 7,
        "times": [1, 2],
        "none": None,
        "yes": True,
    }
