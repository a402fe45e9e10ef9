"""Files and directories that only their owner can access, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.rundir import LineFile, create_exclusive, write_atomic
from muster.rundir.private_files import make_private_dirs, private_opener


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_what_is_created_is_private_under_any_umask(tmp_path: Path) -> None:
    with open(tmp_path / "opened", "w", opener=private_opener) as file:
        file.write("x")
    write_atomic(str(tmp_path / "replaced"), "x")
    assert create_exclusive(str(tmp_path / "claimed"), {})
    LineFile(str(tmp_path / "lines")).append("x\n")
    assert {path.name: mode(path) for path in tmp_path.iterdir()} == dict.fromkeys(
        ["opened", "replaced", "claimed", "lines"], 0o600
    )


@pytest.mark.usefixtures("umask")
def test_missing_parents_are_private_too(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b" / "c"
    make_private_dirs(str(wanted))
    make_private_dirs(str(wanted))
    assert [mode(path) for path in (wanted, *wanted.parents[:2])] == [0o700] * 3


def test_an_existing_directory_keeps_the_access_that_its_owner_gave(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    make_private_dirs(str(tmp_path / "shared" / "new"))
    assert mode(tmp_path / "shared") == 0o750 and mode(tmp_path / "shared" / "new") == 0o700


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_dirs(str(tmp_path / "file"))
