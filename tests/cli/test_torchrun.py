"""`muster torchrun` on the command line, with and without torch."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner

from muster.cli.errors import run_command_line
from muster.cli.main import cli


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))


def test_help_teaches_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    told = CliRunner().invoke(cli, ["torchrun", "--help"], terminal_width=120).output
    assert "srun muster torchrun --spares 1 --nproc-per-node 8 train.py" in told and "--token-file" in told


def test_without_torch_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    without_torch(monkeypatch)
    assert run_command_line(cli, ["torchrun", "--nnodes", "2", "train.py"]) == 1
    assert capsys.readouterr().err == (
        "muster: error: `muster torchrun` needs torch in the same environment: pip install torch\n"
    )


def test_a_script_is_needed(capsys: Any) -> None:
    assert run_command_line(cli, ["torchrun"]) == 2
    assert "no SCRIPT is given" in capsys.readouterr().err
