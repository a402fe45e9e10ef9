"""Users of a lab get accounts, and directories that they cannot enter are found."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from muster.lab import LabError
from muster.lab.users import FIRST_UID, LabUser, closed_directory, group_file, login_environment, parse, passwd_file

KNOWN = [
    pwd.struct_passwd(("root", "x", 0, 0, "", "/root", "/bin/bash")),
    pwd.struct_passwd(("games", "x", 5, 60, "", "/usr/games", "/usr/sbin/nologin")),
    pwd.struct_passwd(("carol", "x", FIRST_UID, FIRST_UID, "", "/home/carol", "/bin/bash")),
]


def test_users_get_the_id_given_or_known_or_a_free_one() -> None:
    assert parse(["alice", "bob:7000", "games", "dave"], KNOWN) == (
        LabUser("alice", FIRST_UID + 1),
        LabUser("bob", 7000),
        LabUser("games", 5),
        LabUser("dave", FIRST_UID + 2),
    )


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["alice:"], "NAME or NAME:UID"),
        (["Alice x"], "NAME or NAME:UID"),
        (["alice:-1"], "NAME or NAME:UID"),
        (["alice", "alice"], "given twice"),
        (["games:7"], "has id 5 on this machine, not 7"),
        (["alice:5"], "id 5 of user alice belongs to another user"),
        (["alice:7000", "bob:7000"], "id 7000 of user bob belongs to another user"),
        (["root"], "an ordinary user's is from 1"),
        (["alice:65534"], "an ordinary user's is from 1"),
    ],
)
def test_an_impossible_user_is_refused(texts: list[str], told: str) -> None:
    with pytest.raises(LabError, match=told):
        parse(texts, KNOWN)


def test_the_account_files_keep_the_machine_s_accounts_and_replace_those_of_lab_users() -> None:
    users = (LabUser("alice", 5002), LabUser("games", 5))
    machine = "root:x:0:0:root:/root:/bin/bash\ngames:x:5:60:games:/usr/games:/usr/sbin/nologin\n"
    assert passwd_file(machine, users, Path("/run/lab/home")).splitlines() == [
        "root:x:0:0:root:/root:/bin/bash",
        "alice:x:5002:5002::/run/lab/home/alice:/bin/bash",
        "games:x:5:5::/run/lab/home/games:/bin/bash",
    ]
    assert group_file("root:x:0:\ngames:x:60:\n", users) == "root:x:0:\nalice:x:5002:\ngames:x:5:\n"


def test_a_login_inherits_no_variables_but_those_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"TERM": "xterm", "SECRET": "x", "HOME": "/root", "PATH": "/root/bin"})
    given = login_environment(LabUser("alice", 5002), Path("/h/alice"), {"SLURM_CONF": "/c"}, ["/py", "/bin", "/py"])
    assert given == {
        "TERM": "xterm",
        "SLURM_CONF": "/c",
        "HOME": "/h/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/bash",
        "PATH": "/py:/bin",
    }


def test_the_first_directory_that_others_cannot_enter_is_found() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        top = Path(name)
        inner = top / "open" / "closed"
        inner.mkdir(parents=True)
        (inner / "file").touch(mode=0o600)
        assert closed_directory(inner / "file") == top
        top.chmod(0o711)
        assert closed_directory(inner / "file") is None, "the last part is a file"
        inner.chmod(0o750)
        assert closed_directory(inner / "file") == closed_directory(inner) == inner
        assert closed_directory(inner / "file", frozenset([os.getuid()])) is None, "an owner can enter it"


def test_directories_of_the_system_are_open() -> None:
    assert closed_directory(Path("/usr/bin/env")) is None
