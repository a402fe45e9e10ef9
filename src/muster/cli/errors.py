"""Run the command line: exit codes, and one line with a remedy for each mistake of the user."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from click.exceptions import Abort, NoSuchOption, UsageError

from muster.exit_codes import BAD_INPUT, INTERRUPTED
from muster.rundir.redaction import redacted
from muster.spec.errors import SpecError, on_one_line
from muster.spec.sbatch_options import DECIDED, KNOWN, NO_VALUE, option_name
from muster.spec.settings import SettingsWarning

_PASS_THROUGH = "any other sbatch option: --sbatch KEY=VALUE"


def run_command_line(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run `command` and return its exit code: the number it returned, else 0; 2 for bad input, 130 for ^C."""
    try:
        with _short_warnings():
            outcome = command.main(
                args=None if arguments is None else list(arguments), prog_name="muster", standalone_mode=False
            )
    except SpecError as error:
        return _print_errors(error.problems)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; click >= 8.2
            error.show()
            return BAD_INPUT
        return _print_errors([usage_problem(error)])
    except click.ClickException as error:
        return _print_errors([error.format_message()], error.exit_code)
    except Abort:
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else 0


def usage_problem(error: UsageError) -> str:
    """Return the error as one line, with the nearest valid spelling."""
    if isinstance(error, NoSuchOption):
        return _unknown_option(error)
    see = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
    return error.format_message() + see


def _unknown_option(error: NoSuchOption) -> str:
    known = _spellings(error.ctx.command) if error.ctx else []
    near = difflib.get_close_matches(error.option_name, known, n=3)
    problem = f"unknown option {error.option_name}"
    guess = f"; did you mean {', '.join(near)}?" if near else ""
    if "--sbatch" not in known:
        return problem + guess
    name = option_name(error.option_name)
    if name in DECIDED:
        return f"{problem}: {DECIDED[name]}"
    if name in KNOWN:
        return f"{problem}; it is an sbatch option: --sbatch {name}{'' if name in NO_VALUE else '=VALUE'}"
    return f"{problem}{guess or ';'} {_PASS_THROUGH}"


def _spellings(command: click.Command) -> list[str]:
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [spelling for option in options for spelling in (*option.opts, *option.secondary_opts)]


def _print_errors(problems: Sequence[str], code: int = BAD_INPUT) -> int:
    for problem in problems:
        click.echo(f"muster: error: {redacted(on_one_line(problem))}", err=True)
    return code


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print Muster's warnings as one line each; Python's format includes source code."""
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SettingsWarning):
                click.echo(f"muster: warning: {on_one_line(str(message))}", err=True)
            else:
                show_other(message, category, *where, **more)

        warnings.simplefilter("always", SettingsWarning)
        warnings.showwarning = show
        yield
