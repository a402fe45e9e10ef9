"""Ordinary users of a lab: their accounts, which exist only inside the lab, and what they may reach."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from muster.lab.errors import LabError

#: Accounts that the machine does not know get the free ids from here on.
FIRST_UID = 5001
#: From here on ids are reserved (nobody is 65534); Slurm refuses -1 and -2.
MAX_UID = 60000
#: Variables of the caller that a login of another user keeps.
_KEPT_VARIABLES = ("COLORTERM", "LANG", "LC_ALL", "NO_COLOR", "TERM", "TZ")
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")


@dataclasses.dataclass(frozen=True)
class LabUser:
    """A user whose only group has the same name and id."""

    name: str
    uid: int

    def setpriv_options(self) -> list[str]:
        """Return the options that make `setpriv` become this user."""
        return [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]


def parse(texts: Iterable[str], known: Sequence[pwd.struct_passwd]) -> tuple[LabUser, ...]:
    """Return the users that `NAME` or `NAME:UID` describe; `known` are the accounts of the machine.

    A name that the machine knows keeps its id, so that such a user needs no other login to use the lab.
    """
    names = {entry.pw_name: entry.pw_uid for entry in known}
    users: list[LabUser] = []
    for text in texts:
        name, _, wanted = text.partition(":")
        if not _NAME.fullmatch(name) or not (wanted.isdecimal() or (not wanted and ":" not in text)):
            raise LabError(f"a user of the lab is NAME or NAME:UID, such as alice:{FIRST_UID}; not {text!r}")
        taken = {*names.values(), *(user.uid for user in users)}
        free = next(uid for uid in range(FIRST_UID, MAX_UID) if uid not in taken)
        uid = int(wanted) if wanted else names.get(name, free)
        if name in (user.name for user in users):
            raise LabError(f"user {name} is given twice")
        if names.get(name, uid) != uid:
            raise LabError(f"user {name} has id {names[name]} on this machine, not {uid}")
        if name not in names and uid in taken:
            raise LabError(f"id {uid} of user {name} belongs to another user; leave it out to get a free one")
        if not 0 < uid < MAX_UID:
            raise LabError(f"user {name} has id {uid}; an ordinary user's is from 1 to {MAX_UID - 1}")
        users.append(LabUser(name, uid))
    return tuple(users)


def passwd_file(machine: str, users: Sequence[LabUser], homes: Path) -> str:
    """Return the machine's /etc/passwd with the lab's users, whose home directories are below `homes`."""
    own = (f"{user.name}:x:{user.uid}:{user.uid}::{homes / user.name}:/bin/bash" for user in users)
    return _merged(machine, users, own)


def group_file(machine: str, users: Sequence[LabUser]) -> str:
    """Return the machine's /etc/group with a group for each of the lab's users."""
    return _merged(machine, users, (f"{user.name}:x:{user.uid}:" for user in users))


def _merged(machine: str, users: Sequence[LabUser], own: Iterable[str]) -> str:
    replaced = {user.name for user in users}
    kept = (line for line in machine.splitlines() if line.partition(":")[0] not in replaced)
    return "\n".join([*kept, *own]) + "\n"


def login_environment(user: LabUser, home: Path, additions: dict[str, str], programs: Sequence[str]) -> dict[str, str]:
    """Return the environment of a user's login: `additions`, with the directories `programs` as PATH."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    account = {"HOME": str(home), "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/bash"}
    return {**kept, **additions, **account, "PATH": os.pathsep.join(dict.fromkeys(programs))}


def closed_directory(path: Path, owners: frozenset[int] = frozenset()) -> Path | None:
    """Return the first directory on the way to `path` that other users cannot enter, or None.

    A directory of one of the `owners` does not count as closed.
    """
    for directory in (*reversed(path.parents), path):
        info = directory.stat()
        if stat.S_ISDIR(info.st_mode) and not info.st_mode & stat.S_IXOTH and info.st_uid not in owners:
            return directory
    return None
