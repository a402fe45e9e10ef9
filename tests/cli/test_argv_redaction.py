"""Secrets in the arguments of a process are overwritten where `ps` reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.argv_redaction import redact_own_argv, redacted_cmdline

SHOW_OWN_ARGUMENTS = """
import sys
from muster.cli.argv_redaction import redact_own_argv
redact_own_argv()
print(open("/proc/self/cmdline").read().split("\\0")[-3:-1], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["muster", "run", "--env", "API_KEY=abc"], ["muster", "run", "--env", "API_KEY=***"]),
        (["--token", "abcdef"], ["--token", "******"]),
        (["--password=p"], ["--password=*"]),
        (["--env", "HOME=/root"], ["--env", "HOME=/root"]),
        ([], []),
    ],
)
def test_only_secrets_are_replaced(words: list[str], shown: list[str]) -> None:
    assert redacted_cmdline("\0".join(words).encode()).decode().split("\0") == (shown or [""])


def test_a_replaced_secret_keeps_its_length_in_bytes() -> None:
    cmdline = "--token\0köstlich\0".encode()
    assert redacted_cmdline(cmdline) == b"--token\0" + b"*" * len("köstlich".encode()) + b"\0"


def test_bytes_that_are_not_utf_8_are_kept() -> None:
    assert redacted_cmdline(b"run\0\xff\xfe\0") == b"run\0\xff\xfe\0"


def test_other_processes_see_the_redacted_arguments_and_python_keeps_its_own() -> None:
    argv = [sys.executable, "-c", SHOW_OWN_ARGUMENTS, "--token", "abcdef"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "['--token', '******'] ['--token', 'abcdef']\n"


def test_where_proc_cannot_be_read_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError("no /proc")

    monkeypatch.setattr("builtins.open", refuse)
    redact_own_argv()
