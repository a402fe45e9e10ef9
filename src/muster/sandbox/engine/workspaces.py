"""Workspaces: scratch directories that several calls share under a name chosen by the caller, until they are idle."""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import Callable

from muster.sandbox.engine.admission_queue import Overloaded
from muster.sandbox.models import public_name

SHARED = "shared"  # the workspace of calls without one, if the settings ask for shared scratch
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BadName(ValueError):
    """The name is not valid for a workspace."""


class Workspaces:
    """The workspaces by name. Each belongs to a separate user id if workers do.

    `end` stops all programs in a directory, removes it, and calls back when nothing is left.
    """

    def __init__(
        self,
        directory: str,
        limit: int,
        idle_s: float,
        first_user: int | None,
        end: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._directory, self._limit, self._idle_s, self._first_user = directory, limit, idle_s, first_user
        self._end = end
        self._numbers: set[int] = set()  # of workspaces, including those that are being removed
        self._used: dict[str, tuple[float, int]] = {}  # time of last use, and its number
        self._in_use: dict[str, int] = {}
        self._directories: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._used)

    def enter(self, name: str) -> str:
        """Return the workspace's directory, created if necessary; the caller calls `leave` afterwards."""
        public = public_name(name)
        if not _NAME.fullmatch(public):
            raise BadName(
                f"a workspace's name has up to 100 letters, digits, dots, dashes, underscores; {public!r} has not"
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
        if len(self._used) >= self._limit:
            if not idle:
                raise Overloaded(f"all {self._limit} workspaces are in use")
            self.remove(idle[0][1])
        number = next(number for number in range(len(self._numbers) + 1) if number not in self._numbers)
        # A new path each time: the previous directory may not be removed yet, and programs must not guess the path.
        directory = f"{self._directory}/workspace-{public_name(name)}-{secrets.token_hex(8)}"
        user = -1 if self._first_user is None else self._first_user + number
        os.mkdir(directory, 0o711)  # ours, so that no program can replace its entries by links
        for path in (f"{directory}/home", f"{directory}/tmp"):
            os.mkdir(path, 0o700)
            os.chown(path, user, user)
        self._numbers.add(number)
        self._directories[name] = directory
        self._used[name] = time.monotonic(), number

    def remove(self, name: str) -> bool:
        """Stop all programs in a workspace and remove it; return False if there is no such workspace."""
        if name not in self._used:
            return False
        _, number = self._used.pop(name)
        self._end(self._directories.pop(name), lambda: self._numbers.discard(number))
        return True

    def expire(self) -> None:
        old = time.monotonic() - self._idle_s
        for name in [name for name, (when, _) in self._used.items() if when < old and not self._in_use.get(name)]:
            self.remove(name)
