"""Actors of former connections: reacquire their handles, and stop those without an owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ray
from ray.util import list_named_actors

from muster.placement.runtime.groups import find_groups_anywhere, remove_groups
from muster.placement.runtime.managed import ManagedSubprocess
from muster.placement.runtime.names import NAMESPACE, parse_name
from muster.placement.runtime.shutdown import graceful_stop_actors


def reacquire_detached_actor_handles(
    procs: Sequence[ManagedSubprocess], *, actor_name_prefix: str = "", namespace: str | None = None
) -> list[ManagedSubprocess]:
    """Return the handles with actors of this connection; those whose actor is gone are left out."""
    found = []
    for proc in procs:
        name = f"{actor_name_prefix}_{proc.label}" if actor_name_prefix else proc.label
        try:
            proc.reacquire(ray.get_actor(name, namespace=namespace))
        except ValueError:
            continue
        found.append(proc)
    return found


def sweep_orphan_actors_by_prefix(*, prefix: str, namespace: str | None = None, timeout_s: float | None = None) -> int:
    """Stop the actors of a namespace (default: this driver's) whose names start with `prefix`; return their number."""
    if not prefix:
        raise ValueError("an empty prefix would match every named actor of the namespace")
    return sweep(lambda name: name.startswith(prefix), namespace, timeout_s)


def sweep(wanted: Callable[[str], bool], namespace: str | None, timeout_s: float | None = None) -> int:
    """Stop the named actors that are wanted. Ray's list is complete and needs no dashboard."""
    namespace = namespace if namespace is not None else ray.get_runtime_context().namespace
    names = [
        actor["name"]
        for actor in list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace and wanted(actor["name"])
    ]
    actors = []
    for name in names:
        try:
            actors.append((name, ray.get_actor(name, namespace=namespace)))
        except ValueError:
            continue  # gone since
    graceful_stop_actors(actors, timeout_s=timeout_s)
    return len(actors)


def sweep_server(server: str, *, before_term: int, timeout_s: float | None = None) -> int:
    """Stop the programs and then remove the groups of earlier terms of this server."""

    def is_old(text: str) -> bool:
        name = parse_name(text)
        return name is not None and name.server == server and name.term < before_term

    stopped = sweep(is_old, NAMESPACE, timeout_s)
    remove_groups(list(find_groups_anywhere(is_old).values()))
    return stopped
