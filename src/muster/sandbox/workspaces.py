"""Scratch that several calls share: one directory for each name that a caller chose, until nobody uses it any more."""

from __future__ import annotations

import asyncio
import os
import re
import time

from muster.sandbox.admission import Overloaded
from muster.sandbox.pool import remove_tree

SHARED = "shared"  # of calls that name none, where that is wanted
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BadName(ValueError):
    """A workspace cannot be called that."""


class Workspaces:
    """Directories by name; owned by a user of their own each, where workers are."""

    def __init__(self, place: str, most: int, idle_s: float, first_user: int | None) -> None:
        self._place, self._most, self._idle_s, self._first_user = place, most, idle_s, first_user
        self._used: dict[str, tuple[float, int]] = {}  # when last, and its number
        self._in_use: dict[str, int] = {}
        self._directories: dict[str, str] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._used)

    def enter(self, name: str) -> str:
        """Its directory, made if need be; `leave` it afterwards."""
        if not _NAME.fullmatch(name):
            raise BadName(
                f"a workspace's name has up to 100 letters, digits, dots, dashes, underscores; {name!r} has not"
            )
        if name not in self._used:
            self._make(name)
        self._used[name] = time.monotonic(), self._used[name][1]
        self._in_use[name] = self._in_use.get(name, 0) + 1
        return self._directories[name]

    def leave(self, name: str) -> None:
        self._in_use[name] -= 1
        if name in self._used:
            self._used[name] = time.monotonic(), self._used[name][1]

    def _make(self, name: str) -> None:
        idle = sorted((when, one) for one, (when, _) in self._used.items() if not self._in_use.get(one))
        if len(self._used) >= self._most:
            if not idle:
                raise Overloaded(f"all {self._most} workspaces are in use")
            self.remove(idle[0][1])
        taken = {number for _, number in self._used.values()}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        self._made += 1  # never the same directory again: a warm worker may still be in the one before
        directory = f"{self._place}/workspace-{name}-{self._made}"
        user = -1 if self._first_user is None else self._first_user + number
        os.mkdir(directory, 0o711)
        for path in (directory, f"{directory}/home", f"{directory}/tmp"):
            if path != directory:
                os.mkdir(path, 0o700)
            os.chown(path, user, user)
        self._directories[name] = directory
        self._used[name] = time.monotonic(), number

    def remove(self, name: str) -> bool:
        """False when there is none. What still runs in it loses its files."""
        if self._used.pop(name, None) is None:
            return False
        asyncio.get_running_loop().run_in_executor(None, remove_tree, self._directories.pop(name))
        return True

    def expire(self) -> None:
        old = time.monotonic() - self._idle_s
        for name in [name for name, (when, _) in self._used.items() if when < old and not self._in_use.get(name)]:
            self.remove(name)
