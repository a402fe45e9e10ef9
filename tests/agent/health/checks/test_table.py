"""The implementations of the checks."""

from __future__ import annotations

from muster.agent.health.checks.table import IMPLEMENTATIONS
from muster.lifecycle.node_checks import BY_NAME


def test_every_check_has_an_implementation() -> None:
    assert IMPLEMENTATIONS.keys() == BY_NAME.keys()
