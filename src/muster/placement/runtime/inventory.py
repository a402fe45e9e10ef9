"""What runs in this cluster, and whose it is; and the end of what is nobody's any more.

    a program or group                    has an owner while
    of a server (`<server>/<term>/...`)   that term is the last one, not released, and the process that claimed it lives
    any other program                     the process that started it, or that took it up again, lives

Where that cannot be told it may have one, and is left alone. A group with another name is its maker's affair.
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
from muster.placement.runtime.names import NAMESPACE, Name, parsed
from muster.placement.runtime.owner import Owner, is_alive
from muster.placement.runtime.shutdown import graceful_stop_actors

ANSWER_S = 10.0  # for an actor to say what it runs
OURS = ("describe", "belongs_to")  # methods by which an actor is known to own a program
RUNNING, ENDED, SILENT = "running", "ended", "silent"


@dataclass(frozen=True)
class Ownership:
    """Whether something has an owner; None when that cannot be told."""

    owned: bool | None
    why: str
    owner: Owner | None = None


@dataclass(frozen=True)
class RunningProgram:
    """One that an actor owns."""

    name: str
    namespace: str
    state: str
    facts: dict[str, Any]  # what the actor says of it; empty when it is silent
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


# -- whose it is ----------------------------------------------------------------------------------------------------


def of_owner(owner: Owner | None, lives: Callable[[Owner], bool | None]) -> Ownership:
    """By the process that has it in hand."""
    if owner is None:
        return Ownership(None, "it does not say whose it is")
    alive = lives(owner)
    if alive is None:
        return Ownership(None, f"whether {owner} lives cannot be told", owner)
    return Ownership(alive, f"{owner}" if alive else f"{owner} is gone", owner)


def of_server(name: Name, last: int, owner: Owner | None, lives: Callable[[Owner], bool | None]) -> Ownership:
    """By the lease of its term: `last` is the server's last one, `owner` claimed this one and did not release it."""
    if name.term < last:
        return Ownership(False, f"somebody else has had the name {name.server!r} since", owner)
    if owner is None:
        return Ownership(False, f"the name {name.server!r} was released")
    return of_owner(owner, lives)


# -- looking --------------------------------------------------------------------------------------------------------


def take() -> Inventory:
    """Everything that is placed in the cluster that this process is connected to."""
    lives = lru_cache(maxsize=None)(is_alive)  # one question for each owner
    terms = lru_cache(maxsize=None)(last_term)

    def by_lease(name: Name) -> Ownership:
        return of_server(name, terms(name.server), owner_of(name.server, name.term), lives)

    programs = []
    for (namespace, text), facts in _reports(_actors()).items():
        name = parsed(text) if namespace == NAMESPACE else None
        ownership = of_owner(facts.get("owner"), lives) if name is None else by_lease(name)
        programs.append(RunningProgram(text, namespace, _state(facts), facts, ownership))
    groups = [
        RunningGroup(text, by_lease(name))
        for text in sorted(find_groups_anywhere(lambda text: True))
        if (name := parsed(text)) is not None and name.rank is None
    ]
    return Inventory(programs, groups)


def reap(found: Inventory, grace: float | None = None) -> list[str]:
    """End what has no owner: programs first, then groups. Returns the names of actors that did not answer.

    Those were killed all the same: their supervisors end what they own.
    """
    lost = found.without_owner()
    handles = []
    for program in lost.programs:
        try:
            handles.append((program.name, ray.get_actor(program.name, namespace=program.namespace)))
        except ValueError:
            continue  # gone meanwhile
    silent = graceful_stop_actors(handles, timeout_s=grace)
    names = {group.name for group in lost.groups}
    remove_groups(list(find_groups_anywhere(names.__contains__).values()))
    return silent


def _actors() -> dict[tuple[str, str], Any]:
    """Handles of the actors that own programs, by namespace and name. Ray's own list knows no classes."""
    found = {}
    for known in list_named_actors(all_namespaces=True):
        try:
            actor = ray.get_actor(known["name"], namespace=known["namespace"])
        except ValueError:
            continue  # gone meanwhile
        if all(hasattr(actor, method) for method in OURS):
            found[known["namespace"], known["name"]] = actor
    return dict(sorted(found.items()))


def _reports(actors: dict[tuple[str, str], Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """What each says of its program; nothing of one that does not answer. Those that have gone are left out."""
    asked = {key: actor.describe.remote() for key, actor in actors.items()}
    answered: set[Any] = set()
    if asked:
        answered = set(ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S)[0])
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
