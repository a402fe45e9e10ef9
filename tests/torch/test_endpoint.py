"""The rendezvous endpoint: its syntax, and the process that may bind it."""

from __future__ import annotations

import pytest
from tests.free_port import free_port

from muster.torch.endpoint import bind_endpoint, is_local, parse_endpoint


@pytest.mark.parametrize("endpoint", ["", "n1", "n1:port", ":29400", "n1:70000", "[fd00::1:29400"])
def test_an_endpoint_without_host_or_port_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        parse_endpoint(endpoint)


def test_only_the_first_process_on_a_host_gets_the_endpoint() -> None:
    port = free_port()
    listener = bind_endpoint("127.0.0.1", port)
    assert listener is not None
    with listener:
        assert bind_endpoint("127.0.0.1", port) is None


def test_a_host_is_local_if_one_of_its_addresses_can_be_bound() -> None:
    assert is_local("localhost")
    assert not is_local("192.0.2.1") and not is_local("no-such-host.invalid")
