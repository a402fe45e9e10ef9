"""The Debian mirror comes from the machine's apt configuration or from a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.lab import LabUnavailable
from muster.lab.debian_mirror import debian_mirror

TARGETS = """\
Docker|Docker CE|https://docker.example/linux/debian/
Debian|Debian-Security|http://mirror.example/debian-security/
Debian|Debian|http://mirror.example/debian/
Debian|Debian|http://other.example/debian/
"""


def apt_that_prints(text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "apt-get"
    program.write_text(f"#!/bin/sh\n[ $1 = indextargets ] && printf %s '{text}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def test_the_first_mirror_of_debian_s_main_archive_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt_that_prints(TARGETS, tmp_path, monkeypatch)
    assert debian_mirror() == "http://mirror.example/debian/"


def test_the_variable_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt_that_prints(TARGETS, tmp_path, monkeypatch)
    monkeypatch.setenv("MUSTER_DEBIAN_MIRROR", "http://chosen.example/debian")
    assert debian_mirror() == "http://chosen.example/debian"


@pytest.mark.parametrize("targets", ["", "Ubuntu|Ubuntu|http://mirror.example/ubuntu/\n"])
def test_without_a_debian_source_the_remedies_are_named(
    targets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt_that_prints(targets, tmp_path, monkeypatch)
    with pytest.raises(LabUnavailable, match=r"`apt-get update`.*MUSTER_DEBIAN_MIRROR"):
        debian_mirror()


def test_without_apt_the_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabUnavailable, match=r"no apt-get here.*MUSTER_DEBIAN_MIRROR"):
        debian_mirror()
