"""Actors of former connections: their handles again, and the end of those that nobody holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ray
from ray.util import list_named_actors

from muster.placement.runtime.groups import find_groups_anywhere, remove_groups
from muster.placement.runtime.managed import ManagedSubprocess
from muster.placement.runtime.names import NAMESPACE, parsed
from muster.placement.runtime.shutdown import graceful_stop_actors


def reacquire_detached_actor_handles(
    procs: Sequence[ManagedSubprocess], *, actor_name_prefix: str = "", namespace: str | None = None
) -> list[ManagedSubprocess]:
    """The same handles with actors of this connection; those whose actor is gone are left out."""
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
    """Stop the named actors of a namespace (this driver's unless given) whose name begins so; returns how many."""
    if not prefix:
        raise ValueError("an empty prefix would match every named actor of the namespace")
    return sweep(lambda name: name.startswith(prefix), namespace, timeout_s)


def sweep(wanted: Callable[[str], bool], namespace: str | None, timeout_s: float | None = None) -> int:
    """Stop the named actors that are wanted. Ray's own list: complete, and there without a dashboard."""
    here = namespace if namespace is not None else ray.get_runtime_context().namespace
    names = [
        actor["name"]
        for actor in list_named_actors(all_namespaces=True)
        if actor["namespace"] == here and wanted(actor["name"])
    ]
    actors = []
    for name in names:
        try:
            actors.append((name, ray.get_actor(name, namespace=here)))
        except ValueError:
            continue  # gone meanwhile
    graceful_stop_actors(actors, timeout_s=timeout_s)
    return len(actors)


def sweep_server(server: str, *, before_term: int, timeout_s: float | None = None) -> int:
    """End what terms of this very server before the given one have left: programs first, then groups."""

    def is_old(text: str) -> bool:
        name = parsed(text)
        return name is not None and name.server == server and name.term < before_term

    stopped = sweep(is_old, NAMESPACE, timeout_s)
    remove_groups(list(find_groups_anywhere(is_old).values()))
    return stopped
