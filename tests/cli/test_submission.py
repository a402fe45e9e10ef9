"""What run, up and render share: the job with --from-env, exit codes of errors, warnings before a submission."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from muster.api import prepare
from muster.cli.submission import InfrastructureFailed, load_submitted_job, print_warnings, submission_errors
from muster.errors import BackendError, Mistake
from muster.process import SpawnError
from muster.spec import JobSpec, SpecError


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (Mistake, click.UsageError, 2),
        (BackendError, InfrastructureFailed, 125),
        (SpawnError, InfrastructureFailed, 125),
    ],
)
def test_an_error_of_a_backend_becomes_an_exit_code(
    error: type[Exception], raised: type[click.ClickException], code: int
) -> None:
    with pytest.raises(raised, match="why") as found, submission_errors():
        raise error("why")
    assert found.value.exit_code == code


def test_without_from_env_variables_of_ray_sub_have_no_effect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMMAND", "python other.py")
    assert load_submitted_job(None, {"command": ["true"]}, from_env=False).command == ["true"]
    assert capsys.readouterr().err == ""


def test_from_env_adds_fields_under_the_flags_and_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMMAND", "python train.py")
    monkeypatch.setenv("GPUS_PER_NODE", "8")
    monkeypatch.setenv("DASHBOARD_PORT", "8265")
    spec = load_submitted_job(None, {"gpus_per_node": "4", "env": {"A": "1"}}, from_env=True)
    assert (spec.gpus_per_node, spec.env["A"], spec.command[-1]) == (4, "1", "python train.py")
    *notes, added = capsys.readouterr().err.splitlines()
    assert any(note.startswith("muster: --from-env: ") and "DASHBOARD_PORT" in note for note in notes)
    assert added.startswith("muster: --from-env adds: ") and "gpus" not in added


def test_a_job_file_wins_over_what_ray_sub_does_without_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("gather_timeout: 5m\nenv: {OMP_NUM_THREADS: 8}\n")
    monkeypatch.setenv("COMMAND", "python train.py")
    monkeypatch.setenv("RAY_DEBUG", "legacy")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    spec = load_submitted_job(file, {"ray_start_arg": ["--verbose"]}, from_env=True)
    assert (spec.gather_timeout, spec.start_timeout) == (300.0, 1800.0)
    assert spec.env == {"OMP_NUM_THREADS": "8", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    assert spec.ray_start_arg == ["--ray-debugger-external", "--verbose"]


@pytest.mark.parametrize("name", ["job.yaml", "conf/job.yml"])
def test_a_job_file_in_place_of_the_command_is_refused_with_the_option(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name} is a job file, not a command; did you mean -f {name}\\?"):
        load_submitted_job(None, {"command": [name, "--dry-run"]}, from_env=False)


def test_a_program_that_is_named_as_a_job_file_is_a_command(tmp_path: Path) -> None:
    program = tmp_path / "play.yaml"
    program.write_text("#!/usr/bin/env ansible-playbook\n")
    program.chmod(0o755)
    assert load_submitted_job(None, {"command": [str(program)]}, from_env=False).command == [str(program)]
    assert load_submitted_job(None, {"command": ["python", "job.yaml"]}, from_env=False).command[0] == "python"


def test_from_env_prints_the_same_job_as_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMMAND", "python train.py")
    load_submitted_job(None, {}, from_env=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("muster: --from-env adds: ") and "'python train.py'" in last


def test_from_env_without_a_command_is_refused() -> None:
    with pytest.raises(SpecError, match="COMMAND"):
        load_submitted_job(None, {}, from_env=True)


def test_a_directory_that_nodes_may_not_share_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("muster.doctor.preflight.NODE_LOCAL_DIRECTORIES", (str(tmp_path.resolve()),))
    monkeypatch.setattr("muster.doctor.preflight.NETWORK_FILESYSTEMS", ())
    monkeypatch.setattr("muster.launch.target.shutil.which", lambda name, path=None: f"/usr/bin/{name}")
    print_warnings(prepare(JobSpec(command=["true"], nodes=2)))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(f" {tmp_path.resolve()}")[0] for line in lines] == [
        "muster: warning: the runs directory",
        "muster: warning: the working directory",
    ]
    assert "--runs-dir" in lines[0] and "--workdir" in lines[1]


def test_a_job_on_this_machine_has_no_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    print_warnings(prepare(JobSpec(command=["true"], backend="local")))
    assert capsys.readouterr().err == ""
