"""HTTP requests and answers as values."""

from __future__ import annotations

import pytest

from muster.web.messages import Answer, Request, json_answer, page_answer, text_answer


def request(target: str) -> Request:
    return Request("GET", target, {})


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/", []),
        ("//", []),
        ("/run/r", ["run", "r"]),
        ("/run/r/?x=/y", ["run", "r"]),
        ("/run/x%22%3Cb%3E", ["run", 'x"<b>']),
        ("/a%2fb", ["a/b"]),  # a slash in a name does not split it
        ("/%ff", ["\ufffd"]),
        ("/..", [".."]),
    ],
)
def test_a_path_is_split_before_its_parts_are_unquoted(target: str, parts: list[str]) -> None:
    assert request(target).path == parts


def test_a_query_s_first_value_counts_and_a_missing_one_is_the_default() -> None:
    query = request("/?a=1&a=2&b=&c=x%20y").query
    assert [query("a"), query("b"), query("c"), query("d"), query("d", "z")] == ["1", "", "x y", "", "z"]


@pytest.mark.parametrize(
    ("target", "number"), [("/?n=12", 12), ("/?n=-3", -3), ("/", 7), ("/?n=", 7), ("/?n=1e3", 7), ("/?n=x", 7)]
)
def test_a_number_that_is_missing_or_none_is_the_default(target: str, number: int) -> None:
    assert request(target).number("n", 7) == number


def test_a_number_of_many_digits_costs_no_time() -> None:
    assert request("/?n=" + "9" * 100_000).number("n", 0) == int("9" * 20)


def test_answers_have_their_kind_of_content() -> None:
    assert json_answer({"a": [1, "ü"]}) == Answer(200, b'{"a":[1,"\\u00fc"]}', "application/json")
    assert json_answer([], 404).status == 404
    assert text_answer(409, "over") == Answer(409, b"over", "text/plain; charset=utf-8")
    page = page_answer("<p>ü", **{"Set-Cookie": "a=b"})
    assert (page.status, page.body, page.kind) == (200, "<p>ü".encode(), "text/html; charset=utf-8")
    assert page.headers == {"Set-Cookie": "a=b"}


def test_text_that_is_no_unicode_is_answered_nevertheless() -> None:
    assert text_answer(200, "a\ud800b").body == page_answer("a\ud800b").body == b"a?b"
