"""The isolation levels: which profiles are tried, what is reported."""

from __future__ import annotations

import types
from typing import Any

import pytest

from muster.sandbox.engine import isolation
from muster.sandbox.engine.isolation import FLOOR, GVISOR, PROCESS, ROOT, USER, candidates


def test_auto_never_goes_below_the_floor() -> None:
    assert candidates("auto", True) == [ROOT, USER, FLOOR]
    assert candidates("auto", False) == [USER, FLOOR]
    assert candidates("full", False) == [USER]


def test_what_was_asked_for_is_tried_and_nothing_else() -> None:
    assert candidates("full", True) == [ROOT, USER]
    assert candidates("floor", True) == [FLOOR] and candidates("process", False) == [PROCESS]


def test_a_profile_is_impossible_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.landlock, "abi", lambda: 0)
    monkeypatch.setattr(isolation.seccomp, "is_known_here", lambda: True)
    assert "no Landlock" in str(isolation.why_impossible(FLOOR))
    assert [isolation.why_impossible(one) for one in (ROOT, USER, PROCESS)] == [None] * 3
    monkeypatch.setattr(isolation.seccomp, "is_known_here", lambda: False)
    assert all("no seccomp filter" in str(isolation.why_impossible(one)) for one in (ROOT, USER, FLOOR, PROCESS))


@pytest.mark.parametrize(
    ("profile", "has_own_user", "release", "counts"),
    [
        (ROOT, True, "5.4.0", True),
        (ROOT, False, "6.8.0", False),
        (FLOOR, True, "5.4.0", True),
        (USER, False, "5.14.0-427.el9.x86_64", True),
        (USER, False, "5.13.19", False),
        (USER, False, "6.1-rc3", True),
        (PROCESS, False, "6.8.0", False),
    ],
)
def test_where_the_kernel_counts_the_processes_of_each_worker(
    monkeypatch: pytest.MonkeyPatch, profile: isolation.Profile, has_own_user: bool, release: str, counts: bool
) -> None:
    monkeypatch.setattr(isolation.os, "uname", lambda: types.SimpleNamespace(release=release))
    assert isolation.counts_processes(profile, has_own_user) is counts


@pytest.mark.parametrize("is_root", [True, False])
def test_gvisor_is_used_only_on_request(is_root: bool) -> None:
    assert candidates("gvisor", is_root) == [GVISOR]
    assert GVISOR not in candidates("auto", is_root)
    assert isolation.counts_processes(GVISOR, False)  # the kernel of each sandbox counts its own


def test_the_mechanisms_of_a_level_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.landlock, "abi", lambda: 4)

    def named(profile: isolation.Profile, **changed: Any) -> set[str]:
        values = {"network": False, "own_user": False, "cgroups": [], "proc": True}
        return set(isolation.mechanisms(profile, **{**values, **changed})) - {"no_new_privs", "seccomp", "rlimits"}

    namespaces = {f"{kind} namespace" for kind in ("mount", "pid", "ipc", "uts")}
    assert named(ROOT) == {*namespaces, "net namespace", "Landlock 4"}
    assert named(USER, network=True, proc=False) == {*namespaces, "user namespace", "no /proc", "Landlock 4"}
    assert named(FLOOR, own_user=True, cgroups=["memory", "pids"]) == {
        "Landlock 4",
        "a user for each worker",
        "cgroup memory",
        "cgroup pids",
    }
    assert named(PROCESS) == set()
    assert named(GVISOR, own_user=True) == {"gVisor (systrap)", "a user for each worker"}  # it has no Landlock


def test_a_level_is_reported_with_the_reasons_against_stronger_ones() -> None:
    level = isolation.Level(FLOOR, ("seccomp",), ("full (user): refused",))
    assert level.to_json() == {"level": "floor", "mechanisms": ["seccomp"], "why_not_more": ["full (user): refused"]}
