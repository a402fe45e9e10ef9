"""`python -m muster.sandbox`: settings that cannot be used are refused with their problems."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.sandbox.__main__ import announce, main
from muster.sandbox.settings import SandboxSettings


def refused(settings: dict[str, Any]) -> str:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "muster.sandbox", "-"],
        input=json.dumps(settings),
        text=True,
        capture_output=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode in (1, 2), done
    return done.stderr


def test_what_cannot_be_is_refused_with_all_its_problems() -> None:
    words = refused({"workers_min": 9, "workers_max": 3, "queue_wait_s": 60, "listen": "0.0.0.0:1", "host": "0.0.0.0"})
    assert "workers_min is 9, more than workers_max, 3" in words
    assert "queue_wait_s is 60" in words
    assert "listen needs a token" in words
    assert "not loopback" in words
    assert "unknown setting 'worker'" in refused({"worker": 1})


def test_a_taken_port_a_missing_preload_and_threads_are_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refused({"port": port})
    assert "cannot preload no_such_module" in refused({"port": 0, "preload": ["no_such_module"]})


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["muster.sandbox", *arguments])
    return main()


def test_settings_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[SandboxSettings] = []

    async def serve(settings: SandboxSettings, announce: object) -> int:
        served.append(settings)
        return 7

    monkeypatch.setattr("muster.sandbox.__main__.serve", serve)
    (tmp_path / "settings.json").write_text('{"port": 0, "workers_min": 1, "workers_max": 1}')
    assert run_main(monkeypatch, str(tmp_path / "settings.json")) == 7
    assert (served[0].port, served[0].workers_max) == (0, 1)


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file or directory"), ("{", "Expecting property name"), ('{"queue": -1}', "queue is -1")],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    told: str,
) -> None:
    if content is not None:
        (tmp_path / "settings.json").write_text(content)
    assert run_main(monkeypatch, str(tmp_path / "settings.json")) == 2
    said = capsys.readouterr().err
    assert said.startswith("muster sandbox: ") and told in said and said.count("\n") == 1


def test_a_ready_server_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"url": "http://127.0.0.1:6000", "isolation": {"level": "full"}}
    announce(SimpleNamespace(facts=lambda: facts))  # type: ignore[arg-type]
    assert capsys.readouterr().out == "muster sandbox: http://127.0.0.1:6000, isolation full\n"
