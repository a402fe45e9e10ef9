"""Private directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.private_dir import make_private


def test_a_new_directory_and_an_existing_private_one_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    make_private(str(path))
    make_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_read_or_a_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    os.symlink(tmp_path / "open", tmp_path / "link")
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match="remove it"):
            make_private(str(tmp_path / name))
