"""The settings of an endpoint's proxy, which it reads as JSON from its stdin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

CHECKS_PER_SECOND_MAX = 20.0  # that one replica gets from all proxies together


@dataclass(frozen=True)
class EndpointSettings:
    """The settings of one proxy."""

    name: str
    port: int
    token: str
    members_file: str  # see sandbox/gateway/peers.py
    host: str = "127.0.0.1"
    health: str | None = None  # path of the health check; None: a replica is healthy if it accepts connections
    interval: float = 2.0  # seconds between two checks of a replica
    sticky_header: str | None = None
    sticky_cookie: str | None = None
    wait: float = 30.0  # seconds for which a request waits for an eligible replica
    proxies: int = 1  # number of nodes with a proxy of this endpoint
    node_index: int = 0

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> EndpointSettings:
        """Return the settings; raise ValueError for a missing or unknown one."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(record) - known):
            raise ValueError(f"unknown settings: {', '.join(unknown)}")
        try:
            return cls(**record)
        except TypeError as error:
            raise ValueError(str(error)) from None

    @property
    def check_interval_s(self) -> float:
        """Seconds between two checks of a replica by this proxy, so that many proxies do not overload it.

        >>> EndpointSettings("chat", 1, "t", "f", proxies=1000).check_interval_s
        50.0
        """
        return max(self.interval, self.proxies / CHECKS_PER_SECOND_MAX)
