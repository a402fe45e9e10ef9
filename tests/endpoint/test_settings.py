"""The settings of an endpoint's proxy."""

from __future__ import annotations

import pytest

from muster.endpoint.settings import EndpointSettings

GIVEN = {"name": "chat", "port": 1, "token": "t", "members_file": "f"}


def test_unknown_and_missing_settings_are_named() -> None:
    with pytest.raises(ValueError, match="unknown settings: waits"):
        EndpointSettings.from_json({**GIVEN, "waits": 1})
    with pytest.raises(ValueError, match="members_file"):
        EndpointSettings.from_json({"name": "chat", "port": 1, "token": "t"})


def test_many_proxies_check_a_replica_less_often() -> None:
    def interval(proxies: int) -> float:
        return EndpointSettings.from_json({**GIVEN, "proxies": proxies}).check_interval_s

    assert (interval(1), interval(40), interval(1000)) == (2.0, 2.0, 50.0)
