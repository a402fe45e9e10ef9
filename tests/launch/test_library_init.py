"""`muster` in the library of a run, which any other package of its name replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launch.library_archive import archive, contents, python

from muster.rundir.paths import LIBRARY

__all__ = ["archive", "contents"]


def test_a_missing_attribute_has_a_clear_error(archive: Path) -> None:
    done = python("import muster; muster.run", archive, check=False)
    assert "Muster is not installed in this environment" in done.stderr and "muster.placement" in done.stderr


def package(directory: Path, source: str) -> Path:
    (directory / "muster").mkdir(parents=True)
    (directory / "muster" / "__init__.py").write_text(source)
    (directory / "muster" / "theirs.py").write_text("from muster import WHO\n")
    return directory


ASKS = "import muster.theirs; print(muster.theirs.WHO, muster.__file__, hasattr(muster, 'beat'))"


@pytest.mark.parametrize("order", [1, -1], ids=["behind the library", "before it"])
def test_another_package_muster_is_imported_instead(archive: Path, tmp_path: Path, order: int) -> None:
    theirs = package(tmp_path / "site", "WHO = 'somebody else'")
    done = python(ASKS, *(archive, theirs)[::order])
    assert done.stdout == f"somebody else {theirs}/muster/__init__.py False\n"
    nothing = python("import muster.process", *(archive, theirs)[::order], check=False)
    assert "No module named 'muster.process'" in nothing.stderr


def test_a_package_muster_with_a_custom_finder_is_imported_instead(archive: Path, tmp_path: Path) -> None:
    """Some editable installations are not on the path."""
    theirs = package(tmp_path / "site", "WHO = 'an editable one'")
    finder = f"""
import sys
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(theirs)!r}]) if name == "muster" else None
sys.meta_path.append(Finder)
"""
    assert python(finder + ASKS, archive).stdout.startswith("an editable one ")


def test_an_import_error_of_the_other_package_is_raised_unchanged(archive: Path, tmp_path: Path) -> None:
    done = python("import muster", archive, package(tmp_path / "site", "import no_such_thing"), check=False)
    assert "No module named 'no_such_thing'" in done.stderr


def test_a_directory_muster_or_another_run_s_library_is_not_imported_instead(
    archive: Path, contents: bytes, tmp_path: Path
) -> None:
    (tmp_path / "site" / "muster").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LIBRARY).write_bytes(contents)
    done = python(
        "import muster; print(muster.beat, muster.__file__)", archive, tmp_path / "site", tmp_path / "run" / LIBRARY
    )
    assert str(archive) in done.stdout
