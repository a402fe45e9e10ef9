"""`muster render`: the script of a job, printed or written, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.invocation import Invoke
from tests.fake_slurm import FakeSlurm


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_the_script_is_printed_and_nothing_is_written(directory: Path, invoke: Invoke, fake_slurm: FakeSlurm) -> None:
    done = invoke("render", "-N", "2", "-p", "gpu", "--", "python", "train.py")
    assert done.code == 0 and done.out.startswith("#!/bin/bash\n") and "#SBATCH --partition=gpu\n" in done.out
    assert list(directory.iterdir()) == [] and fake_slurm.called("sbatch") == []


def test_the_script_is_written_to_a_file(directory: Path, invoke: Invoke) -> None:
    done = invoke("render", "--backend", "local", "--to", "job.sh", "--", "true")
    assert (done.code, done.out) == (0, "")
    assert (directory / "job.sh").read_text().startswith("#!/bin/bash\n")


def test_a_file_that_cannot_be_written_is_named_with_a_remedy(invoke: Invoke) -> None:
    done = invoke("render", "--backend", "local", "--to", "/nonexistent/job.sh", "--", "true")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "muster: error: /nonexistent/job.sh cannot be written: No such file or directory; give another file with --to\n"
    )


def test_the_job_may_come_from_the_variables_of_ray_sub(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND", "python train.py")
    done = invoke("render", "--backend", "local", "--from-env")
    assert done.code == 0 and "muster: --from-env adds: " in done.err


@pytest.mark.parametrize("command", [["run"], ["render"], ["up"], ["doctor"], ["config", "show"]])
def test_the_short_help_of_every_command_with_a_job_has_its_own_examples(command: list[str], invoke: Invoke) -> None:
    short, everything = (invoke(*command, flag).out for flag in ("--help", "--help-all"))
    assert f"    muster {' '.join(command)} " in short and "--help-all" in short
    assert len(short.splitlines()) < 0.6 * len(everything.splitlines()) and "--log-limit" in everything


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--python", "/nonexistent/python"], "--python /nonexistent/python: no such interpreter"),
        (["--workdir", "nowhere"], "--workdir nowhere: no such directory"),
    ],
)
def test_a_mistake_is_refused(words: list[str], told: str, invoke: Invoke) -> None:
    done = invoke("render", "--backend", "local", *words, "--", "true")
    assert (done.code, done.out) == (2, "") and told in done.err
