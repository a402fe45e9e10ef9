"""Errors for users: one line per problem."""

from __future__ import annotations

from muster.errors import SpecError, on_one_line


def test_an_error_has_one_line_per_problem_whatever_a_problem_quotes() -> None:
    error = SpecError(["a\nb", "c\x1b[31m"])
    assert error.problems == ("a\\nb", "c\\x1b[31m")
    assert str(error) == "a\\nb\nc\\x1b[31m"


def test_printable_text_stays_as_it_is_and_other_characters_are_escaped() -> None:
    assert on_one_line("ünï ✓ 'x'") == "ünï ✓ 'x'"
    assert on_one_line("\t\u2028\udcff") == "\\t\\u2028\\udcff"
