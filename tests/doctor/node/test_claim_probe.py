"""Whether leaders can be elected on a filesystem."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from muster.doctor.node import claim_probe
from muster.doctor.node.claim_probe import probe_claims


def test_of_two_claims_one_succeeds_and_none_is_left(tmp_path: Path) -> None:
    assert probe_claims(str(tmp_path), 3) == {"exclusive": True, "hard_links": True}
    assert os.listdir(tmp_path) == []


def test_a_filesystem_without_hard_links_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    assert probe_claims(str(tmp_path), 0) == {"exclusive": True, "hard_links": False}
    assert os.listdir(tmp_path) == []


def test_a_filesystem_with_two_winners_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def always(path: str, value: object) -> bool:
        Path(path).touch()
        return True

    monkeypatch.setattr(claim_probe, "create_exclusive", always)
    assert probe_claims(str(tmp_path), 0)["exclusive"] is False
