"""Run the command line: exit codes, and one line with a remedy for each mistake of the user."""

from __future__ import annotations

import difflib
import json
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from click.exceptions import Abort, BadOptionUsage, NoSuchOption, UsageError

from muster.cli.json_output import error_record, forget_request, json_requested
from muster.errors import MusterWarning, SpecError, on_one_line
from muster.exit_codes import BAD_INPUT, INTERRUPTED
from muster.rundir.redaction import redacted
from muster.spec.sbatch_options import DECIDED, KNOWN, NO_VALUE, PER_NODE, option_name

_NO_COMMAND = re.compile(r"No such command '(.+)'\.")  # of click, which has a class for it only since 8.4
_PASS_THROUGH = "any other sbatch option: --sbatch KEY=VALUE"


def run_command_line(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run `command` and return its exit code: the number it returned, else 0; 2 for bad input, 130 for ^C.

    Errors go to stderr: one line for each problem, with --json one JSON object.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    forget_request()
    try:
        with _short_warnings():
            outcome = command.main(args=words, prog_name="muster", standalone_mode=False)
    except SpecError as error:
        return _print_errors(error.problems)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; click >= 8.2
            error.show()
            return BAD_INPUT
        unparsed = isinstance(error, (NoSuchOption, BadOptionUsage)) or _NO_COMMAND.fullmatch(error.message)
        return _print_errors([usage_problem(error)], words=words if unparsed else ())
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
    return (_unknown_command(error) or error.format_message()) + see


def _unknown_command(error: UsageError) -> str | None:
    """Return the error with the commands that an unknown command may stand for; None for other errors."""
    unknown = _NO_COMMAND.fullmatch(error.message)
    if unknown is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return None
    near = difflib.get_close_matches(unknown[1], error.ctx.command.list_commands(error.ctx), n=3)
    return error.message + (f" Did you mean {', '.join(near)}?" if near else "")


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
    if name in PER_NODE:
        return f"{problem}; use {PER_NODE[name]}, or the sbatch option: --sbatch {name}=VALUE"
    if name in KNOWN:
        return f"{problem}; it is an sbatch option: --sbatch {name}{'' if name in NO_VALUE else '=VALUE'}"
    return f"{problem}{guess or ';'} {_PASS_THROUGH}"


def _spellings(command: click.Command) -> list[str]:
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [spelling for option in options for spelling in (*option.opts, *option.secondary_opts)]


def _print_errors(problems: Sequence[str], code: int = BAD_INPUT, words: Sequence[str] = ()) -> int:
    """Print the problems; `words` are those of a command line that could not be parsed."""
    shown = [redacted(on_one_line(problem)) for problem in problems]
    if json_requested(words):
        click.echo(json.dumps(error_record(shown, code)), err=True)
        return code
    for problem in shown:
        click.echo(f"muster: error: {problem}", err=True)
    return code


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print Muster's warnings as one line each; Python's format includes source code."""
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, MusterWarning):
                click.echo(f"muster: warning: {on_one_line(str(message))}", err=True)
            else:
                show_other(message, category, *where, **more)

        warnings.simplefilter("always", MusterWarning)
        warnings.showwarning = show
        yield
