"""Requests that a web page can send are told from those of clients."""

from __future__ import annotations

import pytest

from muster.sandbox.http.origin import WRONG_HOST, WRONG_ORIGIN, foreign, is_json


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:6000", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:6000", "[::1]", "[::1]:6000"],
)
def test_every_name_of_loopback_is_a_client_s(host: str) -> None:
    assert foreign({"host": host}) is None
    assert foreign({"host": host, "origin": f"http://{host.lower()}"}) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "example.com",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "127.0.0.1@example.com",
        "10.0.0.1",
        "0.0.0.0",
        "[::2]",
        "::1",
        "localhost:123456",
        "localhost:6000 ",
        "localhost\n",
    ],
)
def test_another_name_is_that_of_a_page_whose_name_was_rebound(host: str) -> None:
    assert foreign({"host": host}) == WRONG_HOST


@pytest.mark.parametrize(
    "origin", ["http://example.com", "null", "", "https://localhost:6000", "http://localhost:6001", "http://localhost"]
)
def test_another_origin_is_that_of_a_page(origin: str) -> None:
    assert foreign({"host": "localhost:6000", "origin": origin}) == WRONG_ORIGIN


def test_a_request_without_a_host_is_no_page_s_unless_it_has_an_origin() -> None:
    assert foreign({}) is None
    assert foreign({"origin": "http://example.com"}) == WRONG_ORIGIN


@pytest.mark.parametrize(
    ("kind", "json"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        (" application/json ", True),
        ("text/plain", False),
        ("application/json+x", False),
        ("text/plain; application/json", False),
        ("", False),
    ],
)
def test_json_is_told_by_the_content_type(kind: str, json: bool) -> None:
    assert is_json({"content-type": kind}) is json
    assert is_json({}) is False
