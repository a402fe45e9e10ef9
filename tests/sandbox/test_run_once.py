"""One program in a sandbox that is made for it: its output, and an exit code as of a shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.exit_codes import BY_SIGNAL, TIMED_OUT
from muster.sandbox.engine.languages import UnknownLanguage
from muster.sandbox.run_once import run_once
from muster.sandbox.settings import SandboxSettings


@pytest.fixture
def settings(tmp_path: Path) -> SandboxSettings:
    os.chmod(tmp_path, 0o755)
    return SandboxSettings(workers_min=1, workers_max=1, preload=(), scratch_dir=str(tmp_path), max_output=1000)


@pytest.mark.parametrize(
    ("language", "code", "stdin", "expected"),
    [
        ("python", "print(input())", b"hi", (b"hi\n", b"", 0)),
        ("ipython", "print(1)", b"", (b"1\n", b"", 0)),
        ("sh", "echo out; echo err >&2; exit 7", b"", (b"out\n", b"err\n", 7)),
        ("python", "import os; os.kill(os.getpid(), 11)", b"", (b"", b"", BY_SIGNAL + 11)),
    ],
    ids=["python", "ipython", "shell", "signal"],
)
async def test_output_and_exit_code_are_the_program_s(
    settings: SandboxSettings, language: str, code: str, stdin: bytes, expected: tuple[bytes, bytes, int]
) -> None:
    assert await run_once(settings, code, language, 60.0, stdin) == expected
    assert os.listdir(settings.scratch_dir) == []


async def test_a_program_that_a_limit_ended_says_so(settings: SandboxSettings) -> None:
    stdout, stderr, code = await run_once(settings, "while True: pass", "python", 0.5, b"")
    assert (stdout, stderr, code) == (b"", b"muster sandbox: it was ended after 0.5 s\n", TIMED_OUT)


async def test_an_unknown_language_is_refused_before_anything_is_started(settings: SandboxSettings) -> None:
    with pytest.raises(UnknownLanguage, match="unknown language 'cobol'"):
        await run_once(settings, "1", "cobol", 1.0, b"")
    assert os.listdir(settings.scratch_dir) == []
