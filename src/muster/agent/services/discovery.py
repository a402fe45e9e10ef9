"""Service endpoints as environment variables, for drivers, gangs, guests and sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.agent.service_model import ENDPOINT
from muster.agent.services import endpoint
from muster.agent.services.templating import variable_part
from muster.rundir import AttemptPaths, read_record

READY = "ready"
# The kernel rejects an environment variable of 128 KiB or more. This one is also part of a message to every node and of
# the environment of every process of a gang: without a limit the leader would send bytes that grow with nodes squared.
URLS_VARIABLE_MAX_BYTES = 16 << 10


@dataclass(frozen=True)
class Endpoints:
    """The endpoints of one service that are ready. Made once for all nodes."""

    urls: tuple[str, ...]  # ordered by rank in the cycle
    by_node: Mapping[int, str]
    local: bool  # it listens on loopback: each node reaches only its own instance
    text: str  # the value of the variable with all of them; not used if it is too long
    is_endpoint: bool = False  # one URL for the replicas of a pool

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Endpoints:
        ready = [one for one in record["instances"] if one["state"] == READY and one["url"]]
        urls = tuple(str(one["url"]) for one in ready)
        return cls(
            urls,
            {one["rank"]: str(one["url"]) for one in ready},
            bool(record["local"]),
            ",".join(urls),
            record.get("kind") == ENDPOINT,
        )

    def reachable(self, node_index: int) -> tuple[str, ...]:
        """Return the endpoints that this node can reach."""
        if not self.local:
            return self.urls
        return (self.by_node[node_index],) if node_index in self.by_node else ()

    @property
    def in_file(self) -> bool:
        """Whether the endpoints are in a file, since they are too many for a variable."""
        return not self.local and len(self.text) > URLS_VARIABLE_MAX_BYTES

    def variables(self, name: str, node_index: int, urls_file: str) -> dict[str, str]:
        """Return the variables for a process on this node: the nearest endpoint, and all of them or their file."""
        nearest = self.by_node.get(node_index)
        if nearest is None and (self.local or not self.urls):
            return {}
        if self.is_endpoint and nearest is not None:
            return {endpoint.variable(name): nearest}
        variable = f"MUSTER_SERVICE_{variable_part(name)}"
        if self.in_file:
            return {variable: nearest or self.urls[0], f"{variable}_URLS_FILE": urls_file}
        return {variable: nearest or self.urls[0], f"{variable}_URLS": nearest or "" if self.local else self.text}


def published_variables(attempt: AttemptPaths, node_index: int, cycle: int) -> dict[str, str]:
    """Return the variables of all services from the run directory; records of another attempt or cycle are ignored."""
    try:
        names = sorted(name[: -len(".json")] for name in os.listdir(attempt.services_dir) if name.endswith(".json"))
    except OSError:
        return {}
    records = {name: read_record(attempt.service_record(name)) for name in names}
    found = {"MUSTER_SERVICES_DIR": attempt.services_dir}
    for name, record in records.items():
        if (record.get("attempt"), record.get("cycle")) == (attempt.number, cycle):
            found.update(Endpoints.of_record(record).variables(name, node_index, attempt.service_urls(name)))
    return found
