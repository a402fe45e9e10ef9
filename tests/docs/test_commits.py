"""`make lint` rejects commit subjects that do not follow CONTRIBUTING.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / ".ci" / "commit-subjects"


def check(tmp_path: Path, subject: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "subjects").write_text(f"Detect zombie job scripts\n{subject}\n")
    return subprocess.run([sys.executable, CHECK, tmp_path / "subjects"], capture_output=True, text=True)


@pytest.mark.parametrize("subject", ["Pass the token to nginx", "Embed the agent", "Address review findings", "Fix it"])
def test_imperative_subjects_of_72_characters_are_accepted(tmp_path: Path, subject: str) -> None:
    assert check(tmp_path, subject.ljust(72, "x")).returncode == 0


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("A zombie is no running job script: shown", "'A' is not a verb"),
        ("Fixed the election", "'Fixed' is not a verb"),
        ("Adding a test", "'Adding' is not a verb"),
        ("Fixes the election", "'Fixes' is not a verb"),
        ("fix the election", "capital letter"),
        ("Fix " + "x" * 69, "73 characters"),
    ],
)
def test_other_subjects_are_rejected_with_the_reason(tmp_path: Path, subject: str, why: str) -> None:
    done = check(tmp_path, subject)
    assert done.returncode == 1 and why in done.stderr and done.stderr.count("commit subject") == 1
