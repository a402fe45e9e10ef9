"""The inventory of placed programs and groups with their owners, and reaping of those without an owner.

    a program or group                    has an owner while
    of a server (`<server>/<term>/...`)   that term is the last, not released, and the process that claimed it is alive
    any other program                     the process that started or reacquired it is alive

If that is unknown, it is not reaped. Groups with other names are not ours and are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from muster.placement.runtime.groups import find_groups_anywhere, remove_groups
from muster.placement.runtime.lease import last_term, owner_of
from muster.placement.runtime.names import NAMESPACE, Name, parse_name
from muster.placement.runtime.owner import Owner, is_alive
from muster.placement.runtime.shutdown import graceful_stop_actors

DESCRIBE_TIMEOUT_S = 10.0
ACTOR_METHODS = ("describe", "belongs_to")  # an actor with these methods owns a program
RUNNING, ENDED, SILENT = "running", "ended", "silent"


@dataclass(frozen=True)
class Ownership:
    """Whether something has an owner (None if that is unknown), and why."""

    owned: bool | None
    why: str
    owner: Owner | None = None


@dataclass(frozen=True)
class RunningProgram:
    """A program that an actor owns."""

    name: str
    namespace: str
    state: str
    facts: dict[str, Any]  # from the actor; empty if it does not answer
    ownership: Ownership

    def record(self) -> dict[str, Any]:
        known = {key: self.facts.get(key) for key in ("host", "pid", "actor_pid", "exit", "log_file", "since")}
        return {"name": self.name, "namespace": self.namespace, "state": self.state, **known, **asdict(self.ownership)}


@dataclass(frozen=True)
class RunningGroup:
    """A placement group of a server."""

    name: str
    ownership: Ownership

    def record(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self.ownership)}


@dataclass(frozen=True)
class Inventory:
    programs: Sequence[RunningProgram]
    groups: Sequence[RunningGroup]

    def without_owner(self) -> Inventory:
        return Inventory(
            [program for program in self.programs if program.ownership.owned is False],
            [group for group in self.groups if group.ownership.owned is False],
        )

    def record(self) -> dict[str, Any]:
        return {
            "programs": [program.record() for program in self.programs],
            "groups": [group.record() for group in self.groups],
        }


# -- ownership ------------------------------------------------------------------------------------------------------


def ownership_by_process(owner: Owner | None, is_alive: Callable[[Owner], bool | None]) -> Ownership:
    """Return the ownership by the process that started or reacquired a program."""
    if owner is None:
        return Ownership(None, "its owner is not known")
    alive = is_alive(owner)
    if alive is None:
        return Ownership(None, f"whether {owner} is alive is not known", owner)
    return Ownership(alive, f"{owner}" if alive else f"{owner} is gone", owner)


def ownership_by_lease(
    name: Name, last: int, owner: Owner | None, is_alive: Callable[[Owner], bool | None]
) -> Ownership:
    """Return the ownership by the lease of a term: `last` is the server's last term, `owner` holds the name's term."""
    if name.term < last:
        return Ownership(False, f"another process has claimed the name {name.server!r} since", owner)
    if owner is None:
        return Ownership(False, f"the name {name.server!r} was released")
    return ownership_by_process(owner, is_alive)


# -- inventory and reaping ------------------------------------------------------------------------------------------


def take_inventory() -> Inventory:
    """Return everything that is placed in the cluster to which this process is connected."""
    alive = lru_cache(maxsize=None)(is_alive)  # one check for each owner
    terms = lru_cache(maxsize=None)(last_term)

    def by_lease(name: Name) -> Ownership:
        return ownership_by_lease(name, terms(name.server), owner_of(name.server, name.term), alive)

    programs = []
    for (namespace, text), facts in _reports(_actors()).items():
        name = parse_name(text) if namespace == NAMESPACE else None
        ownership = ownership_by_process(facts.get("owner"), alive) if name is None else by_lease(name)
        programs.append(RunningProgram(text, namespace, _state(facts), facts, ownership))
    groups = [
        RunningGroup(text, by_lease(name))
        for text in sorted(find_groups_anywhere(lambda text: True))
        if (name := parse_name(text)) is not None and name.rank is None
    ]
    return Inventory(programs, groups)


def reap(found: Inventory, grace: float | None = None) -> list[str]:
    """Stop programs without an owner, then remove groups without one; return the names of actors that did not answer.

    Those actors are killed all the same, and their supervisors kill their programs.
    """
    lost = found.without_owner()
    handles = []
    for program in lost.programs:
        try:
            handles.append((program.name, ray.get_actor(program.name, namespace=program.namespace)))
        except ValueError:
            continue  # gone since
    silent = graceful_stop_actors(handles, timeout_s=grace)
    names = {group.name for group in lost.groups}
    remove_groups(list(find_groups_anywhere(names.__contains__).values()))
    return silent


def _actors() -> dict[tuple[str, str], Any]:
    """Return the actors that own programs by namespace and name. Ray's list does not have their classes."""
    found = {}
    for known in list_named_actors(all_namespaces=True):
        try:
            actor = ray.get_actor(known["name"], namespace=known["namespace"])
        except ValueError:
            continue  # gone since
        if all(hasattr(actor, method) for method in ACTOR_METHODS):
            found[known["namespace"], known["name"]] = actor
    return dict(sorted(found.items()))


def _reports(actors: dict[tuple[str, str], Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the facts of each program; empty if its actor does not answer. Actors that are gone are left out."""
    asked = {key: actor.describe.remote() for key, actor in actors.items()}
    answered: set[Any] = set()
    if asked:
        answered = set(ray.wait(list(asked.values()), num_returns=len(asked), timeout=DESCRIBE_TIMEOUT_S)[0])
    reports: dict[tuple[str, str], dict[str, Any]] = {}
    for key, ref in asked.items():
        if ref not in answered:
            reports[key] = {}
            continue
        try:
            reports[key] = ray.get(ref)
        except RayError:
            continue
    return reports


def _state(facts: dict[str, Any]) -> str:
    return SILENT if not facts else RUNNING if facts["alive"] else ENDED
