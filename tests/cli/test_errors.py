"""The command line's exit codes, and its errors and warnings: one line each."""

from __future__ import annotations

import warnings

import click
import pytest

from muster.cli.errors import run_command_line
from muster.errors import SettingsWarning
from muster.spec import SpecError


def command(action: object) -> click.Command:
    """A command that raises the exception it is given, or returns the value."""

    @click.command()
    def act() -> object:
        if isinstance(action, BaseException):
            raise action
        return action

    return act


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (None, 0),
        (0, 0),
        (7, 7),
        ("text", 0),
        (SpecError(["a"]), 2),
        (click.UsageError("a"), 2),
        (click.ClickException("a"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_follows_from_the_result(action: object, code: int) -> None:
    assert run_command_line(command(action), []) == code


def test_every_problem_of_a_job_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line(command(SpecError(["--nodes: bad", "--time: worse\nand long"])), [])
    assert capsys.readouterr().err == "muster: error: --nodes: bad\nmuster: error: --time: worse\\nand long\n"


def test_a_secret_in_an_error_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line(command(click.ClickException("sbatch refused API_KEY=verysecret")), [])
    assert capsys.readouterr().err == "muster: error: sbatch refused API_KEY=***\n"


def test_a_usage_error_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @click.argument("run")
    def show(run: str) -> None:
        """Show RUN."""

    assert run_command_line(show, []) == 2
    err = capsys.readouterr().err
    assert err.startswith("muster: error: ") and err.endswith("(see `muster --help`)\n") and err.count("\n") == 1


def test_a_warning_about_settings_is_one_line_and_others_keep_python_s_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def warn() -> None:
        warnings.warn("MUSTER_X has no effect", SettingsWarning, stacklevel=1)
        warnings.warn("MUSTER_X has no effect", SettingsWarning, stacklevel=1)

    run_command_line(warn, [])
    assert capsys.readouterr().err == 2 * "muster: warning: MUSTER_X has no effect\n"

    @click.command()
    def warn_otherwise() -> None:
        warnings.warn("old", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="old"):
        run_command_line(warn_otherwise, [])
    assert "muster: warning" not in capsys.readouterr().err
