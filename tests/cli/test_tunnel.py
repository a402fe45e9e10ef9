"""The target of `muster tunnel RUN SERVICE`."""

from __future__ import annotations

from typing import Any

import click
import pytest

from muster.cli.tunnel import _target
from muster.runs.tunnels import Tunnel


def status(*instances: tuple[str, str, str | None]) -> dict[str, Any]:
    entries = [{"host": host, "state": state, "url": url} for host, state, url in instances]
    return {"run": "r", "services": {"judge": {"instances": entries}}}


def test_a_service_is_reached_on_the_leader_s_node_if_it_is_there_else_on_the_first() -> None:
    one, two = ("n1", "ready", "http://10.0.0.1:7001"), ("n2", "ready", "http://10.0.0.2:7002")
    assert _target("judge", "n2", status(one, two)) == Tunnel("n2", 7002)
    assert _target("judge", "n9", status(one, two)) == Tunnel("n1", 7001)
    assert _target("judge", "n1", status(("n1", "starting", None), two)) == Tunnel("n2", 7002)


@pytest.mark.parametrize(("name", "words"), [("judge", "has no endpoint now"), ("other", "its services are judge")])
def test_a_service_without_an_endpoint_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(click.ClickException, match=words):
        _target(name, "n1", status(("n1", "restarting", None)))
