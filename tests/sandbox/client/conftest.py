"""Endpoints for clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.sandbox.client.endpoint import Endpoint


@pytest.fixture
def endpoints() -> Iterator[Callable[..., Endpoint]]:
    """Open an endpoint for this test: endpoints(respond)."""
    opened: list[Endpoint] = []

    def start(*args: Any) -> Endpoint:
        opened.append(Endpoint(*args))
        return opened[-1]

    yield start
    for endpoint in opened:
        endpoint.close()
