"""Landlock: file rights that a process loses, and those that are granted again."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.forked import value_of

from muster.sandbox.jail import kernel, landlock
from muster.sandbox.jail.landlock import IOCTL_DEV, READ, REFER, TRUNCATE, WRITE_FILE, Ruleset

needs_landlock = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")


@pytest.mark.parametrize(
    ("version", "later"),
    [(1, 0), (2, REFER), (3, REFER | TRUNCATE), (4, REFER | TRUNCATE), (5, REFER | TRUNCATE | IOCTL_DEV)],
)
def test_each_version_restricts_the_rights_that_it_knows(version: int, later: int) -> None:
    assert landlock.file_bits(version) == (1 << 13) - 1 | later


def test_without_anything_to_restrict_no_ruleset_is_made() -> None:
    rules = Ruleset(files=False, tcp=False, scopes=False)
    assert (rules.fd, rules.handled) == (-1, 0)
    rules.enforce()  # without no_new_privs it would fail


def test_a_kernel_without_landlock_restricts_no_scope_and_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert Ruleset(files=False, tcp=True, scopes=True).fd == -1


def attempt(path: Path, mode: str) -> Any:
    try:
        with path.open(mode) as file:
            return file.read() if mode == "r" else file.write("new")
    except OSError as error:
        return error.errno


@needs_landlock
def test_only_the_granted_rights_on_files_are_left(tmp_path: Path) -> None:
    for name in ("hidden", "readable", "writable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    def attempts() -> list[Any]:
        rules = Ruleset(files=True, tcp=False, scopes=False)
        rules.allow([str(tmp_path / "readable"), str(tmp_path / "missing")], READ)
        rules.allow([str(tmp_path / "writable")], rules.handled)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        rules.enforce()
        return [attempt(tmp_path / name / "file", mode) for name in ("hidden", "readable", "writable") for mode in "ra"]

    refused = errno.EACCES
    assert value_of(attempts) == [refused, refused, "readable", refused, "writable", 3]


@needs_landlock
def test_a_right_on_a_single_file_has_no_rights_of_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "other").write_text("old")

    def attempts() -> list[Any]:
        rules = Ruleset(files=True, tcp=False, scopes=False)
        rules.allow([str(tmp_path / "file")], READ | WRITE_FILE)  # READ has one of directories, which a file refuses
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        rules.enforce()
        return [attempt(tmp_path / name, mode) for name in ("file", "other") for mode in "ra"]

    assert value_of(attempts) == ["old", 3, errno.EACCES, errno.EACCES]
