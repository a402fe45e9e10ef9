"""Who owns a program or group, and what is reaped. Reaping on real Ray is in test_survival.py."""

from __future__ import annotations

from typing import Any

import pytest

ray = pytest.importorskip("ray")

from muster.placement.runtime import inventory as module
from muster.placement.runtime.inventory import (
    Inventory,
    Ownership,
    RunningGroup,
    RunningProgram,
    ownership_by_lease,
    ownership_by_process,
    reap,
    take_inventory,
)
from muster.placement.runtime.names import NAMESPACE, Name
from muster.placement.runtime.owner import Owner

OWNER = Owner("node", "n1", 7, 2, "pid:[3]", 0.0)
OWNED, LOST, UNKNOWN = Ownership(True, "it is alive"), Ownership(False, "it is gone"), Ownership(None, "who knows")
FACTS = {"host": "n1", "pid": 70, "actor_pid": 69, "alive": True, "owner": OWNER, "other": "not shown"}


def program(name: str, ownership: Ownership) -> RunningProgram:
    return RunningProgram(name, "ns", "running", dict(FACTS), ownership)


@pytest.mark.parametrize(
    ("alive", "why"), [(True, "process 7 on n1 "), (False, " is gone"), (None, "is alive is not known")]
)
def test_a_program_belongs_to_the_process_that_started_it_while_that_is_alive(alive: bool | None, why: str) -> None:
    ownership = ownership_by_process(OWNER, lambda owner: alive)
    assert ownership.owned is alive and why in ownership.why and ownership.owner == OWNER


def test_without_a_known_process_the_owner_is_unknown() -> None:
    assert ownership_by_process(None, lambda owner: False) == Ownership(None, "its owner is not known")


@pytest.mark.parametrize(
    ("term", "owner", "alive", "owned", "why"),
    [
        (1, OWNER, True, False, "another process has claimed the name 'chat' since"),  # even if the owner is alive
        (2, None, True, False, "the name 'chat' was released"),
        (2, OWNER, True, True, "process 7 on n1"),
        (2, OWNER, False, False, "is gone"),
        (2, OWNER, None, None, "is not known"),
    ],
)
def test_what_a_server_placed_has_an_owner_while_its_term_is_the_last_and_held(
    term: int, owner: Owner | None, alive: bool | None, owned: bool | None, why: str
) -> None:
    ownership = ownership_by_lease(Name("chat", term, 0), 2, owner, lambda owner: alive)
    assert ownership.owned is owned and why in ownership.why


def test_only_what_certainly_has_no_owner_is_without_one() -> None:
    programs = [program(str(each.owned), each) for each in (OWNED, LOST, UNKNOWN)]
    groups = [RunningGroup(str(each.owned), each) for each in (OWNED, LOST, UNKNOWN)]
    lost = Inventory(programs, groups).without_owner()
    assert [each.name for each in lost.programs] == ["False"] and [each.name for each in lost.groups] == ["False"]


def test_a_record_has_the_fields_of_muster_ps() -> None:
    record = Inventory([program("a", OWNED)], [RunningGroup("g", LOST)]).record()
    assert record == {
        "programs": [
            {
                "name": "a",
                "namespace": "ns",
                "state": "running",
                "host": "n1",
                "pid": 70,
                "actor_pid": 69,
                "exit": None,
                "log_file": None,
                "since": None,
                "owned": True,
                "why": "it is alive",
                "owner": None,
            }
        ],
        "groups": [{"name": "g", "owned": False, "why": "it is gone", "owner": None}],
    }


def test_the_inventory_distinguishes_servers_from_other_programs_and_foreign_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: dict[tuple[str, str], dict[str, Any]] = {
        (NAMESPACE, "chat/1/0.0"): dict(FACTS),
        (NAMESPACE, "chat/2/0.0"): {**FACTS, "alive": False},
        ("tests", "chat/1/0.0"): dict(FACTS),  # of another namespace: not a server's, whatever its name
        ("tests", "silent"): {},
    }
    checked: list[Owner] = []

    def is_alive(owner: Owner) -> bool:
        checked.append(owner)
        return True

    monkeypatch.setattr(module, "_actors", dict)
    monkeypatch.setattr(module, "_reports", lambda actors: reports)
    monkeypatch.setattr(module, "find_groups_anywhere", lambda wanted: {"chat/2/0": 1, "foreign": 2, "chat/2/0.0": 3})
    monkeypatch.setattr(module, "last_term", lambda server: 2)
    monkeypatch.setattr(module, "owner_of", lambda server, term: OWNER)
    monkeypatch.setattr(module, "is_alive", is_alive)
    found = take_inventory()
    assert [(each.namespace, each.name, each.state, each.ownership.owned) for each in found.programs] == [
        (NAMESPACE, "chat/1/0.0", "running", False),
        (NAMESPACE, "chat/2/0.0", "ended", True),
        ("tests", "chat/1/0.0", "running", True),
        ("tests", "silent", "silent", None),
    ]
    assert [(group.name, group.ownership.owned) for group in found.groups] == [("chat/2/0", True)]
    assert checked == [OWNER]  # once for all


def test_a_reap_stops_programs_without_owner_before_their_groups_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []

    def get_actor(name: str, namespace: str) -> str:
        if name == "gone since":
            raise ValueError
        return f"{namespace}/{name}"

    def stop(actors: list[tuple[str, str]], *, timeout_s: float | None) -> list[str]:
        done.append((actors, timeout_s))
        return ["lost"]

    monkeypatch.setattr(module.ray, "get_actor", get_actor)
    monkeypatch.setattr(module, "graceful_stop_actors", stop)
    monkeypatch.setattr(module, "find_groups_anywhere", lambda wanted: {n: n for n in ("g", "kept") if wanted(n)})
    monkeypatch.setattr(module, "remove_groups", done.append)
    programs = [program("lost", LOST), program("gone since", LOST), program("kept", OWNED)]
    assert reap(Inventory(programs, [RunningGroup("g", LOST), RunningGroup("kept", UNKNOWN)]), 0.5) == ["lost"]
    assert done == [([("lost", "ns/lost")], 0.5), ["g"]]
