"""Services as the driver, gangs, guests and sessions find them: variables. Pure, but for reading records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from muster.agent.services.templating import variable
from muster.rundir import AttemptPaths, read_record

READY = "ready"


def reachable(record: Mapping[str, Any], rank: int) -> tuple[str | None, list[str]]:
    """The endpoint on this node, and all that can be reached from it, by rank in the cycle.

    Of a `local` service, whose endpoints are on loopback, that is its own alone.
    """
    ready = [one for one in record["instances"] if one["state"] == READY and one["url"]]
    here = next((str(one["url"]) for one in ready if one["rank"] == rank), None)
    if record["local"]:
        return here, [here] if here else []
    return here, [str(one["url"]) for one in ready]


def variables(records: Mapping[str, Mapping[str, Any]], rank: int) -> dict[str, str]:
    """For a process on this node: the endpoint here if there is one, else the first; and all of them."""
    found = {}
    for name, record in records.items():
        here, urls = reachable(record, rank)
        if urls:
            found[f"MUSTER_SERVICE_{variable(name)}"] = here or urls[0]
            found[f"MUSTER_SERVICE_{variable(name)}_URLS"] = ",".join(urls)
    return found


def published_variables(attempt: AttemptPaths, rank: int, cycle: int) -> dict[str, str]:
    """The same from the run directory, for who comes later. A record of another attempt or cycle does not count."""
    try:
        names = sorted(name[: -len(".json")] for name in os.listdir(attempt.services_dir) if name.endswith(".json"))
    except OSError:
        return {}
    records = {name: read_record(attempt.service_record(name)) for name in names}
    mine = {
        name: record
        for name, record in records.items()
        if (record.get("attempt"), record.get("cycle")) == (attempt.number, cycle)
    }
    return {"MUSTER_SERVICES_DIR": attempt.services_dir, **variables(mine, rank)}
