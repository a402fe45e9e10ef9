"""`muster config`: every value with its origin, secrets hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cli.errors import run_command_line
from muster.cli.main import cli

SITE = """
partition: cpu
env: {HF_HOME: /shared/hf, WANDB_API_KEY: verysecret}
setup: export PROXY=http://ann:verysecret@proxy:3128
profiles:
  gpu: {partition: gpu, gpus_per_node: 8}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(path))
    return str(path)


@pytest.fixture
def muster(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def muster(*words: str) -> str:
        assert run_command_line(cli, words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return muster


def test_only_what_differs_from_the_default_is_shown_with_its_origin(site: str, muster: Callable[..., str]) -> None:
    lines = [
        line.rstrip().split(None, 2) for line in muster("config", "show", "--profile", "gpu", "-N", "4").splitlines()
    ]
    shown = {name: (value, origin) for name, value, origin in lines[1:] if name != "setup"}
    assert shown == {
        "nodes": ("4", "--nodes"),
        "gpus_per_node": ("8", f"{site}: profiles.gpu.gpus_per_node"),
        "env.HF_HOME": ("/shared/hf", f"{site}: env.HF_HOME"),
        "env.WANDB_API_KEY": ("***", f"{site}: env.WANDB_API_KEY"),
        "partition": ("gpu", f"{site}: profiles.gpu.partition"),
    }


def test_secrets_are_hidden_everywhere(site: str, muster: Callable[..., str]) -> None:
    words = ["--env", "API_KEY=verysecret", "--", "python", "x.py", "--token", "verysecret", "--name=verysecret"]
    for form in ([], ["--json"], ["--all"]):
        text = muster("config", "show", *form, *words)
        assert "API_KEY" in text and "x.py" in text and "verysecret" not in text


def test_json_with_all_includes_defaults(site: str, muster: Callable[..., str]) -> None:
    shown = json.loads(muster("config", "show", "--json", "--all"))
    assert shown["partition"] == {"value": "cpu", "from": f"{site}: partition"}
    assert shown["nodes"] == {"value": 1, "from": "default"}
    assert "command" not in shown


def test_without_settings_a_line_says_so(muster: Callable[..., str]) -> None:
    assert muster("config", "show").startswith("every setting has its default")


def test_path_prints_the_files_that_are_read(
    site: str, muster: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    assert muster("config", "path") == f"site\t{site}\tfound\nuser\t/nowhere/muster/config.yaml\tnot there\n"


def test_path_as_json_has_the_files(site: str, muster: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    assert json.loads(muster("config", "path", "--json")) == {
        "site": {"file": site, "found": True},
        "user": {"file": "/nowhere/muster/config.yaml", "found": False},
    }


def test_a_doubtful_variable_is_warned_about_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_PARTITON", "gpu")
    assert run_command_line(cli, ["config", "show"]) == 0
    err = capsys.readouterr().err
    assert err == "muster: warning: MUSTER_PARTITON has no effect; did you mean MUSTER_PARTITION?\n"
