"""Stack dumps of the processes below this one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from muster.agent.health import stacks


def test_without_py_spy_the_dump_has_the_state_of_every_descendant(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True) as child:
        try:
            assert stacks.dump_stacks(str(tmp_path / "stacks"), {"PATH": str(tmp_path)}) is False
            text = (tmp_path / "stacks").read_text()
        finally:
            os.killpg(child.pid, 9)
    assert f"== process {child.pid}: sh\nState:" in text
    assert "waits in" in text


def test_a_program_is_described_without_its_arguments() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            while stacks.describe(child.pid) != "sleep":
                assert child.poll() is None
        finally:
            child.kill()
    assert stacks.describe(child.pid) == "ended"
