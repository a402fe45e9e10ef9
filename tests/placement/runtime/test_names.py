"""The names of groups and actors in Ray."""

from __future__ import annotations

import pytest

from muster.placement.runtime.names import Name, parse_name, validate_server


def test_names_are_taken_apart_again() -> None:
    for name in (Name("a_b.c-1", 12, 0), Name("a", 1, 3, 2)):
        assert parse_name(str(name)) == name
    assert [parse_name(text) for text in ("a", "a/1", "a/1/x", "a_b", "/1/0", "a/1/0.0/1")] == [None] * 6
    with pytest.raises(ValueError, match="a server's name is"):
        validate_server("a/b")


def test_a_rank_is_shown_only_in_the_name_of_an_actor() -> None:
    assert (str(Name("chat", 2, 0)), str(Name("chat", 2, 0, 1))) == ("chat/2/0", "chat/2/0.1")


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a" * 64, "a\n"])
def test_a_server_s_name_that_could_not_be_parsed_again_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at most 63 letters"):
        validate_server(name)
    assert validate_server("a" * 63) == "a" * 63
