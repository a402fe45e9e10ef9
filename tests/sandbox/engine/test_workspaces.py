"""Workspaces: directories by name, evicted when there are too many, expired when they are idle."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sandbox.engine import workspaces
from muster.sandbox.engine.admission_queue import Overloaded
from muster.sandbox.engine.workspaces import BadName, Workspaces


class Clock:
    """The time that workspaces see."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(workspaces, "time", types.SimpleNamespace(monotonic=lambda: made.now))
    return made


class Ended:
    """The directories that were to be removed, and what to call then."""

    def __init__(self) -> None:
        self.directories: list[str] = []
        self.callbacks: list[Callable[[], None]] = []

    def __call__(self, directory: str, then: Callable[[], None]) -> None:
        self.directories.append(directory)
        self.callbacks.append(then)


def test_a_workspace_is_created_once_and_has_a_home_and_a_tmp(tmp_path: Path, clock: Clock) -> None:
    all_of_them = Workspaces(str(tmp_path), 2, 60, None, Ended())
    first = all_of_them.enter("w")
    assert all_of_them.enter("w") == first and len(all_of_them) == 1
    assert sorted(os.listdir(first)) == ["home", "tmp"]
    assert [os.stat(path).st_mode & 0o777 for path in (first, f"{first}/home", f"{first}/tmp")] == [0o711, 0o700, 0o700]
    assert all_of_them.enter("v") != first and len(all_of_them) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a" * 101, "ä", "a\n", "a b"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadName, match="up to 100 letters, digits, dots, dashes, underscores"):
        Workspaces(str(tmp_path), 2, 60, None, Ended()).enter(name)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_unused_workspace_makes_room_and_those_in_use_do_not(tmp_path: Path, clock: Clock) -> None:
    ended = Ended()
    all_of_them = Workspaces(str(tmp_path), 2, 60, None, ended)
    directories = {}
    for name in ("busy", "idle"):
        clock.now += 1
        directories[name] = all_of_them.enter(name)
    with pytest.raises(Overloaded, match="all 2 workspaces are in use"):
        all_of_them.enter("new")
    all_of_them.leave("idle")
    all_of_them.enter("new")
    assert ended.directories == [directories["idle"]] and len(all_of_them) == 2


def test_an_idle_workspace_expires_and_one_in_use_does_not(tmp_path: Path, clock: Clock) -> None:
    ended = Ended()
    all_of_them = Workspaces(str(tmp_path), 9, 60, None, ended)
    left, used, busy = (all_of_them.enter(name) for name in ("left", "used", "busy"))
    all_of_them.leave("left")
    clock.now += 50
    all_of_them.leave("used")
    clock.now += 11
    all_of_them.expire()
    assert ended.directories == [left]
    clock.now += 60
    all_of_them.expire()
    assert ended.directories == [left, used] and busy not in ended.directories


def test_a_removed_workspace_is_created_anew_even_while_its_last_call_runs(tmp_path: Path, clock: Clock) -> None:
    ended = Ended()
    all_of_them = Workspaces(str(tmp_path), 9, 60, None, ended)
    first = all_of_them.enter("w")
    assert all_of_them.remove("w") and not all_of_them.remove("w")
    assert ended.directories == [first] and len(all_of_them) == 0
    all_of_them.leave("w")
    assert len(all_of_them) == 0
    assert all_of_them.enter("w") != first


@pytest.mark.skipif(os.getuid() != 0, reason="giving files to other users needs root")
def test_each_workspace_has_a_user_that_is_free_again_when_its_files_are_gone(tmp_path: Path, clock: Clock) -> None:
    ended = Ended()
    all_of_them = Workspaces(str(tmp_path), 9, 60, 500_000, ended)

    def user(name: str) -> int:
        return os.stat(all_of_them.enter(name) + "/home").st_uid

    assert [user(name) for name in ("a", "b")] == [500_000, 500_001]
    all_of_them.remove("a")
    assert user("c") == 500_002  # files of the first may still be there
    ended.callbacks[0]()
    assert user("d") == 500_000
    assert all(os.stat(path).st_uid == 0 for path in tmp_path.iterdir())
