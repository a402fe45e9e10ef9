"""Arguments that the starter refuses, since `ray start` would hang."""

from __future__ import annotations

import pytest

from muster.agent.ray.starter import refusal_reason


@pytest.mark.parametrize(
    ("version", "address", "refused"),
    [
        ("2.46.0", "fd77::1", True),
        ("2.46.0", "10.77.0.1", False),
        ("2.49.0", "fd77::1", False),
        ("3.0.0.dev0", "fd77::1", False),
    ],
)
def test_a_ray_that_knows_no_ipv6_is_refused_such_an_address_by_both_names(
    version: str, address: str, refused: bool
) -> None:
    reason = refusal_reason(version, ["--head", f"--node-ip-address={address}", "--labels=a:b"])
    assert (reason is not None) == refused
    if reason:
        assert f"Ray {version}" in reason and address in reason
