"""`python -m muster.endpoint`: settings that cannot be used are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from muster.endpoint.__main__ import main


@pytest.mark.parametrize("text", ["{", json.dumps({"name": "chat"}), json.dumps({"name": "chat", "x": 1})])
def test_settings_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "settings.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["muster.endpoint", str(tmp_path / "settings.json")])
    assert main() == 2
    assert capsys.readouterr().err.startswith("muster endpoint: ")
