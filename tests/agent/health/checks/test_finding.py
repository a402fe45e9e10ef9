"""The node that a check is given."""

from __future__ import annotations

from pathlib import Path

from muster.agent.health.checks.finding import CheckedNode, run_program


def test_a_program_runs_once_however_many_checks_read_its_output(tmp_path: Path) -> None:
    node = CheckedNode({"PATH": "/usr/bin:/bin"}, str(tmp_path), str(tmp_path))
    argv = ("sh", "-c", f"echo run | tee -a {tmp_path}/runs; exit 3")
    assert [node.output(*argv), node.output(*argv)] == [(3, "run\n")] * 2
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_program_that_is_not_installed_has_no_output() -> None:
    assert run_program(["muster-no-such-program"], {}) is None
