"""Placeholders and URLs of services."""

from __future__ import annotations

import pytest

from muster.agent.service_model import ServiceDefinition
from muster.agent.services import templating


def test_placeholders_are_put_in_and_the_shell_s_own_braces_stay() -> None:
    values = templating.placeholder_values({"http": 7001, "admin": 7002}, "10.0.0.1", "/tmp/d")
    text = "serve {http} {port} {admin} {address} {dir} ${http} {} {unknown} {'a': 1}"
    assert templating.fill(text, values) == "serve 7001 7001 7002 10.0.0.1 /tmp/d ${http} {} {unknown} {'a': 1}"


@pytest.mark.parametrize(
    ("leased", "ready", "url"),
    [
        ({"http": 1, "admin": 2}, {}, "http://10.0.0.1:1"),
        ({"admin": 2, "http": 1}, {}, "http://10.0.0.1:1"),
        ({"https": 1}, {}, "https://10.0.0.1:1"),
        ({"redis": 1}, {}, "tcp://10.0.0.1:1"),
        ({"api": 1}, {"http": "/"}, "http://10.0.0.1:1"),
        ({}, {}, None),
    ],
)
def test_the_url_says_which_port_and_how(leased: dict[str, int], ready: dict[str, str], url: str | None) -> None:
    assert templating.endpoint_url(ServiceDefinition("web", ready=ready), "10.0.0.1", leased) == url


def test_an_ipv6_address_is_in_brackets() -> None:
    assert templating.endpoint_url(ServiceDefinition("web"), "fd00::1", {"http": 80}) == "http://[fd00::1]:80"
