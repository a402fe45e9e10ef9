"""Service endpoints as environment variables, for drivers, gangs, guests and sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from muster.agent.services.templating import variable_part
from muster.rundir import AttemptPaths, read_record

READY = "ready"


def reachable_urls(record: Mapping[str, Any], rank: int) -> tuple[str | None, list[str]]:
    """Return the endpoint on this node and all endpoints that this node can reach, ordered by rank in the cycle.

    A `local` service listens on loopback: each node reaches only its own instance.
    """
    ready = [one for one in record["instances"] if one["state"] == READY and one["url"]]
    here = next((str(one["url"]) for one in ready if one["rank"] == rank), None)
    if record["local"]:
        return here, [here] if here else []
    return here, [str(one["url"]) for one in ready]


def endpoint_variables(records: Mapping[str, Mapping[str, Any]], rank: int) -> dict[str, str]:
    """Return the variables for a process on this node: the nearest endpoint of each service, and all of them."""
    found = {}
    for name, record in records.items():
        here, urls = reachable_urls(record, rank)
        if urls:
            found[f"MUSTER_SERVICE_{variable_part(name)}"] = here or urls[0]
            found[f"MUSTER_SERVICE_{variable_part(name)}_URLS"] = ",".join(urls)
    return found


def published_variables(attempt: AttemptPaths, rank: int, cycle: int) -> dict[str, str]:
    """Return `endpoint_variables` from the run directory; records of another attempt or cycle are ignored."""
    try:
        names = sorted(name[: -len(".json")] for name in os.listdir(attempt.services_dir) if name.endswith(".json"))
    except OSError:
        return {}
    records = {name: read_record(attempt.service_record(name)) for name in names}
    current = {
        name: record
        for name, record in records.items()
        if (record.get("attempt"), record.get("cycle")) == (attempt.number, cycle)
    }
    return {"MUSTER_SERVICES_DIR": attempt.services_dir, **endpoint_variables(current, rank)}
