"""Who is let in: links work once, cookies belong to one server, and only our own page may change anything."""

from __future__ import annotations

import pytest

from muster.web.auth import Auth, UiSession, is_loopback, may_change


def test_a_link_lets_one_browser_in_and_is_then_worthless() -> None:
    auth = Auth("muster-1")
    token = auth.new_link()
    session = auth.enter(token)
    assert session is not None and auth.enter(token) is None
    assert auth.session({"Cookie": f"other=1; muster-1={session.cookie}"}) == session


@pytest.mark.parametrize("token", ["", "x", "\ud7ff", "a" * 10_000])
def test_another_token_opens_nothing(token: str) -> None:
    auth = Auth("muster-1")
    auth.new_link()
    assert auth.enter(token) is None


def test_a_newer_link_replaces_the_one_before() -> None:
    auth = Auth("muster-1")
    first, second = auth.new_link(), auth.new_link()
    assert auth.enter(first) is None and auth.enter(second) is not None


@pytest.mark.parametrize("cookie", ["", "muster-1=", "muster-1=x", "muster-2={}", "=;;=", "muster-1"])
def test_without_its_cookie_there_is_no_session(cookie: str) -> None:
    auth = Auth("muster-1")
    session = auth.enter(auth.new_link())
    assert session is not None and auth.session({"Cookie": cookie.format(session.cookie)}) is None


def test_the_cookie_is_no_script_s_and_no_other_site_s() -> None:
    auth = Auth("muster-1")
    session = auth.enter(auth.new_link())
    assert session is not None
    assert auth.cookie(session).endswith("; HttpOnly; SameSite=Strict; Path=/")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "localhost:1", "[::1]:80", "LOCALHOST:9"])
def test_loopback_by_any_port_is_ours(host: str) -> None:
    assert is_loopback({"Host": host})


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "[::2]:80", "0.0.0.0:80"]
)
def test_a_name_of_another_s_is_not(host: str) -> None:
    assert not is_loopback({"Host": host})


def test_only_a_request_of_our_own_page_changes_something() -> None:
    session = UiSession()
    ours = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000", "X-Muster-Key": session.key}
    assert may_change(session, {**ours, "Sec-Fetch-Site": "same-origin"}) and may_change(session, ours)
    wrong: list[dict[str, str]] = [
        {"Origin": "http://127.0.0.1:9000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "https://127.0.0.1:8000"},
        {"X-Muster-Key": ""},
        {"X-Muster-Key": UiSession().key},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ]
    for change in wrong:
        assert not may_change(session, {**ours, **change}), change


def test_a_scrape_needs_the_token_that_was_given() -> None:
    assert Auth("m", "s3cret").may_scrape({"Authorization": "Bearer s3cret"})
    for header in ("", "Bearer ", "Bearer x", "Basic s3cret"):
        assert not Auth("m", "s3cret").may_scrape({"Authorization": header})
    assert not Auth("m").may_scrape({"Authorization": "Bearer "})
